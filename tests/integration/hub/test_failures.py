"""Models of a hub: what a person reads when a hub, a line or a disk fails."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_core.weights.errors import SourceError
from openclaw_core.weights.hub_client import HubAccess, Pace
from openclaw_core.weights.sources import MARKER, fetch_model
from tests.hub_server import Answer, Hub
from tests.integration.hub.parts import (
    FIRST,
    INDEX,
    MB,
    NEW,
    OLD,
    QUICK,
    REPOSITORY,
    SECOND,
    SOURCE,
    TOKEN,
    child,
    fetch,
    holds,
    model,
    nothing,
)


@pytest.mark.parametrize(
    "failures",
    [
        [Answer(429, {"Retry-After": "1"})],
        [Answer(503), Answer(500)],
        [Answer(408), Answer(502)],
    ],
)
def test_an_answer_that_may_change_is_asked_for_again(hub: Hub, url: str, place: Path, failures: list[Answer]) -> None:
    hub.failures = list(failures)
    lines: list[str] = []
    fetch(SOURCE, place, url, log=lines.append)

    holds(place, hub.commits[OLD], OLD)
    assert len([line for line in lines if f"{url} answers {failures[0].status}" in line]) == 1
    # The server's wish counts, up to what is bearable.
    assert (f"again in {QUICK.longest_s:g} s" in lines[0]) == (failures[0].status == 429)


def test_a_hub_that_does_not_recover_is_given_up_after_so_many_tries(hub: Hub, url: str, place: Path) -> None:
    hub.failures = [Answer(503)] * 20
    with pytest.raises(SourceError, match=rf"{url} answers 503 .*, 3 times; check network and proxies, or name a mirror"):
        fetch(SOURCE, place, url)
    assert len(hub.failures) == 17
    assert nothing(place)


def test_a_hub_that_falls_silent_is_asked_again(hub: Hub, url: str, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pace = Pace(tries=2, first_s=0.01, silence_s=0.3)
        with pytest.raises(SourceError, match=rf"{dead}: ReadTimeout.*, 2 times"):
            fetch_model(SOURCE, place, print, hub=lambda: HubAccess((dead,)), pace=pace)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            Answer(401, {"X-Error-Code": "GatedRepo"}),
            r"org/tiny is gated.*accept its conditions at http.*/org/tiny and give a token",
        ),
        (Answer(403), r"gated, or this token may not read it.*HF_TOKEN"),
        (Answer(401), r"org/tiny does not exist, or is private or gated; check the name, and give a token in HF_TOKEN"),
        (
            Answer(404, {"X-Error-Code": "RevisionNotFound"}),
            r"has no revision 'main'; check the name of the branch, tag or commit",
        ),
        (Answer(404, {"X-Error-Code": "RepoNotFound"}), r"there is no repository org/tiny; check the name"),
        (Answer(200, body=b"<html>welcome to the hotel"), r"does not answer as a hub does.*check HF_ENDPOINT"),
        (Answer(400, {"X-Error-Message": "no such thing"}), r"answers 400: no such thing"),
    ],
)
def test_a_refusal_is_told_with_advice_and_not_repeated(hub: Hub, url: str, place: Path, answer: Answer, message: str) -> None:
    hub.failures = [answer]
    with pytest.raises(SourceError, match=message):
        fetch(SOURCE, place, url)
    assert len(hub.asked) == 1
    assert nothing(place)


def test_a_gated_model_comes_with_a_token_that_nobody_else_is_shown(hub: Hub, url: str, place: Path) -> None:
    hub.needs_token = TOKEN
    lines: list[str] = []
    with pytest.raises(SourceError) as caught:
        fetch(SOURCE, place, url, token=f"{TOKEN}x", log=lines.append)
    fetch(SOURCE, place, url, token=TOKEN, log=lines.append)

    holds(place, hub.commits[OLD], OLD)
    assert all(("Authorization" in asked.headers) == (asked.server == "hub") for asked in hub.requests)
    shown = [str(caught.value), *lines, repr(HubAccess((url,), TOKEN)), (place / MARKER).read_text()]
    assert not any(TOKEN in text or "secret" in text for text in shown)


def test_a_token_comes_from_a_file_or_the_environment_and_is_on_no_command_line(
    hub: Hub, url: str, place: Path, tmp_path: Path
) -> None:
    hub.needs_token = TOKEN
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    for number, environment in enumerate(({"HF_TOKEN": TOKEN}, {"HF_TOKEN_PATH": str(file)})):
        process = child(SOURCE, place.with_name(f"hf-{number}"), HF_ENDPOINT=url, **environment)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 0, said
        assert TOKEN not in said and not any(TOKEN in word for word in process.args)


def test_a_mirror_is_asked_where_the_hub_is_away_and_is_shown_no_token(hub: Hub, url: str, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        away = f"http://127.0.0.1:{server.getsockname()[1]}"
    lines: list[str] = []
    fetch(SOURCE, place, away, url, token=TOKEN, log=lines.append)

    holds(place, hub.commits[OLD], OLD)
    assert not any("Authorization" in asked.headers for asked in hub.requests)
    # Once it is known to be away, it is not asked first for each file.
    assert len([line for line in lines if away in line]) == QUICK.tries


def test_a_mirror_goes_on_with_the_file_that_the_hub_has_begun(hub: Hub, url: str, place: Path) -> None:
    mirror = Hub(REPOSITORY, hub.commits, {"main": NEW})
    hub.breaks = {FIRST: [2 * MB, 0, 0, 0]}
    with mirror.serving() as other:
        fetch(SOURCE, place, url, other)

    holds(place, hub.commits[OLD], OLD)
    assert (hub.sent[FIRST], mirror.sent[FIRST]) == (2 * MB, MB)


def test_where_no_hub_has_it_each_ones_answer_is_told(hub: Hub, url: str, place: Path) -> None:
    hub.failures = [Answer(401)]
    with Hub("org/other", {}, {}).serving() as other:
        message = (
            rf"hf://org/tiny@main cannot be downloaded: {url} answers 401: .*; {other} answers 404: there is no repository"
        )
        with pytest.raises(SourceError, match=message):
            fetch(SOURCE, place, url, other)


@pytest.mark.parametrize("name", [FIRST, "tokenizer.json"])
@pytest.mark.parametrize("tells", [True, False])  # in the listing; without, the ETag counts
def test_what_differs_from_the_hubs_digest_is_fetched_again_and_then_refused(
    hub: Hub, url: str, place: Path, name: str, tells: bool
) -> None:
    hub.tells = tells
    right = hub.commits[OLD][name]
    wrong = bytes([right[0] ^ 1]) + right[1:]
    hub.tampered = {name: [wrong]}
    fetch(SOURCE, place, url)
    holds(place, hub.commits[OLD], OLD)

    other = place.with_name("again")
    hub.tampered = {name: [wrong, wrong]}
    with pytest.raises(
        SourceError, match=rf"{name} came twice with another content: (sha256|git blob) .*a proxy or mirror changes it"
    ):
        fetch(SOURCE, other, url)
    assert not other.exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pytorch_model.bin": b"x"}, r"has its weights as pytorch_model\.bin only: pickles, which run code"),
        ({"tiny.Q4.gguf": b"x"}, r"has GGUF files only; name the repository of the original model"),
        ({"config.json": b"{}"}, r"has neither model\.safetensors nor model\.safetensors\.index\.json"),
    ],
)
def test_a_repository_without_safetensors_is_refused(
    hub: Hub, url: str, place: Path, files: dict[str, bytes], message: str
) -> None:
    hub.commits[OLD] = {"config.json": b"{}", "tokenizer_config.json": b"{}", **files}
    with pytest.raises(SourceError, match=message):
        fetch(SOURCE, place, url)
    assert nothing(place) and not hub.sent


def test_a_repository_without_a_tokenizer_is_refused_before_its_weights_come(hub: Hub, url: str, place: Path) -> None:
    del hub.commits[OLD]["tokenizer_config.json"]
    with pytest.raises(SourceError, match=r"org/tiny has no tokenizer_config\.json; a model in Hugging Face form is needed"):
        fetch(SOURCE, place, url)
    assert nothing(place) and not hub.sent


def test_a_whole_model_that_has_not_its_name_yet_is_not_fetched_again(hub: Hub, url: str, place: Path) -> None:
    fetch(SOURCE, place, url)
    place.rename(place.with_name(".hf.partial"))  # as when the machine stops at the last step
    hub.branches["main"] = NEW
    hub.sent.clear()
    fetch(SOURCE, place, url)

    holds(place, hub.commits[OLD], OLD)
    assert not hub.sent


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{", r"is no index of weights"),
        (b'{"weight_map": {"a": "model-3.safetensors"}}', r"lacks model-3\.safetensors, which its model\.safetensors\.index"),
        (b'{"weight_map": {"a": "../x.safetensors"}}', r"names \.\./x\.safetensors; weights are safetensors of the top folder"),
    ],
)
def test_an_index_that_is_wrong_is_named(hub: Hub, url: str, place: Path, index: bytes, message: str) -> None:
    hub.commits[OLD] = {**model("old"), INDEX: index, "../x.safetensors": b"x"}
    with pytest.raises(SourceError, match=message):
        fetch(SOURCE, place, url)
    assert not place.exists()


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A disk of its own, of so many bytes, at ``place``. Mounting takes root."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_too_small_is_told_before_a_weight_comes(hub: Hub, url: str, place: Path) -> None:
    with small_disk(place.parent, "4m"):
        with pytest.raises(
            SourceError, match=r"needs 6,000,0\d\d bytes at \S*/models/tiny, 4,1\d\d,\d\d\d are free; make room"
        ) as caught:
            fetch(SOURCE, place, url)
        assert str(place.parent) in str(caught.value)
        assert hub.sent[FIRST] == hub.sent[SECOND] == 0
        subprocess.run(["mount", "-o", "remount,size=16m", str(place.parent)], check=True)
        fetch(SOURCE, place, url)
        holds(place, hub.commits[OLD], OLD)


def test_a_disk_that_fills_up_leaves_what_has_come_and_the_next_try_goes_on(hub: Hub, url: str, place: Path) -> None:
    hub.tells = False  # so nothing is known before
    with small_disk(place.parent, "4m"):
        with pytest.raises(SourceError, match=r"the disk of \S*/\.hf\.partial is full, \d+ bytes are free; .*make room"):
            fetch(SOURCE, place, url)
        assert not place.exists()
        subprocess.run(["mount", "-o", "remount,size=16m", str(place.parent)], check=True)
        came = sum(path.stat().st_size for path in place.with_name(".hf.partial").glob("*.safetensors*"))
        assert came > 3 * MB
        hub.sent.clear()
        fetch(SOURCE, place, url)
        holds(place, hub.commits[OLD], OLD)
        assert hub.sent[FIRST] + hub.sent[SECOND] <= 6 * MB - came + len(hub.commits[OLD][INDEX])


def test_offline_no_hub_is_asked(hub: Hub, url: str, place: Path) -> None:
    process = child(SOURCE, place, HF_ENDPOINT=url, HF_HUB_OFFLINE="1")
    said = process.communicate(timeout=60)[0]

    assert process.returncode == 1 and "HF_HUB_OFFLINE is set, so no hub is asked" in said
    assert not hub.asked


@pytest.mark.parametrize("address", ["huggingface.co", "ftp://x", "https://user@host", "https://"])
def test_an_address_that_is_no_hubs_is_named(place: Path, address: str) -> None:
    with pytest.raises(SourceError, match=r"is not understood; it is like https://huggingface\.co"):
        fetch(SOURCE, place, address)
