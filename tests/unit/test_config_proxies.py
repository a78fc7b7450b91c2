"""A proxy's password is refused wherever it would be stored and shown, and no message repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_core.cluster.init import cluster_from_file
from openclaw_core.config import ConfigError, load_config

PROXIES = ("http://me:secret@proxy:3128", "me:secret@proxy:3128", "http://secret@proxy:3128", "http://me:se/cret@proxy:3128")


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("cluster.http_proxy", lambda url: url),
        ("cluster.https_proxy", lambda url: url),
        ("cluster.environment", lambda url: {"HTTPS_PROXY": url}),
        ("cluster.environment", lambda url: {"all_proxy": url}),
        ("cluster.build", lambda url: {"args": {"HTTP_PROXY": url}}),
    ],
)  # fmt: skip
def test_a_password_is_refused_and_the_message_says_what_works_instead(name: str, around: Any, proxy: str) -> None:
    with pytest.raises(ConfigError, match=name) as error:
        load_config("4b-2nodes", {name: around(proxy)})
    message = str(error.value)
    assert "holds a user or a password" in message and "cntlm" in message and "http://127.0.0.1:3128" in message
    assert "secret" not in message and "cret@" not in message


def test_a_file_of_hosts_with_a_password_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    hosts = load_config("4b-2nodes").cluster.model_dump(mode="json")["hosts"]
    file.write_text(yaml.safe_dump({"hosts": hosts, "https_proxy": PROXIES[0]}))
    with pytest.raises(ConfigError, match=r"cluster\.https_proxy: it holds a user or a password") as error:
        cluster_from_file(file, "4b-2nodes")
    assert "secret" not in str(error.value)


def test_a_proxy_without_a_password_is_taken() -> None:
    said = {"cluster.http_proxy": "http://proxy:3128", "cluster.environment": {"all_proxy": "socks5h://[fd00::1]:1080"}}
    assert load_config("4b-2nodes", said).cluster.http_proxy == "http://proxy:3128"


def test_other_values_are_repeated_in_messages_as_before() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.shm_size_mb: .* \(got 1\)"):
        load_config("4b-2nodes", {"cluster.shm_size_mb": 1})
