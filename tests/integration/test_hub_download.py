"""Models of a hub: what comes, what is gone on with, and what a person reads when a hub, a line or a disk fails."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_core.weights.errors import SourceError
from openclaw_core.weights.hub_client import HubAccess, Pace
from openclaw_core.weights.sources import MARKER, FetchResult, fetch_model
from tests.hub_server import SIGNATURE, Answer, Hub

REPOSITORY = "org/tiny"
SOURCE = f"hf://{REPOSITORY}"
OLD, NEW = "a" * 40, "b" * 40
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
MB = 1_000_000
QUICK = Pace(tries=3, first_s=0.01, longest_s=0.05, connect_s=2, silence_s=2)
TOKEN = "hf_secretsecretsecret"


def content(seed: str, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def model(seed: str, size: int = 3 * MB) -> dict[str, bytes]:
    """A repository as publishers make them: with what is not needed beside what is."""
    index = {"metadata": {}, "weight_map": {"a": FIRST, "b": SECOND, "c": FIRST}}
    return {
        "config.json": json.dumps({"model_type": "llama", "seed": seed}).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "merges.txt": b"a b\n",
        "LICENSE": b"free",
        INDEX: json.dumps(index).encode(),
        FIRST: content(f"{seed} 1", size),
        SECOND: content(f"{seed} 2", size),
        "README.md": b"# Tiny",
        ".gitattributes": b"",
        "consolidated.safetensors": content("twice", 100),
        "pytorch_model.bin": content("pickle", 100),
        "original/params.json": b"{}",
    }


NEEDED = {"config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt", "LICENSE", INDEX, FIRST, SECOND}


@pytest.fixture
def hub() -> Hub:
    return Hub(REPOSITORY, {OLD: model("old"), NEW: model("new")}, {"main": OLD, "v2/rc": NEW})


@pytest.fixture
def url(hub: Hub) -> Iterator[str]:
    with hub.serving() as address:
        yield address


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "models/tiny/hf"


def fetch(source: str, place: Path, *urls: str, token: str | None = None, log: Callable[[str], None] = print) -> FetchResult:
    return fetch_model(source, place, log, hub=lambda: HubAccess(urls, token), pace=QUICK)


def holds(place: Path, files: dict[str, bytes], commit: str) -> None:
    """The needed files of a commit and nothing else, and a marker that says so."""
    assert {path.name for path in place.iterdir()} == {*NEEDED, MARKER}
    assert all((place / name).read_bytes() == files[name] for name in NEEDED)
    marker = json.loads((place / MARKER).read_text())
    assert marker["commit"] == commit
    assert marker["files"] == {
        name: {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()} for name in NEEDED
    }
    assert list(place.parent.iterdir()) == [place]


def nothing(place: Path) -> bool:
    return not place.parent.exists() or not list(place.parent.iterdir())


def test_what_a_model_needs_comes_once_and_no_pickle(hub: Hub, url: str, place: Path) -> None:
    first = fetch(SOURCE, place, url)
    requests = len(hub.asked)
    again = fetch(SOURCE, place, url)

    assert (first.reused, again.reused, len(hub.asked)) == (False, True, requests)
    holds(place, hub.commits[OLD], OLD)
    assert hub.sent.keys() == NEEDED


@pytest.mark.parametrize(("revision", "commit"), [("v2/rc", NEW), (NEW, NEW), (OLD, OLD)])
def test_a_revision_is_a_branch_or_a_commit(hub: Hub, url: str, place: Path, revision: str, commit: str) -> None:
    fetch(f"{SOURCE}@{revision}", place, url)

    holds(place, hub.commits[commit], commit)


def test_a_branch_that_moves_is_not_taken_silently(hub: Hub, url: str, place: Path) -> None:
    fetch(SOURCE, place, url)
    hub.branches["main"] = NEW

    assert fetch(SOURCE, place, url).reused
    assert fetch(f"{SOURCE}@{OLD}", place, url).reused
    holds(place, hub.commits[OLD], OLD)
    assert not fetch(f"{SOURCE}@{NEW}", place, url).reused
    holds(place, hub.commits[NEW], NEW)


def test_an_unfinished_model_is_finished_at_the_commit_that_it_was_begun_with(hub: Hub, url: str, place: Path) -> None:
    hub.breaks = {SECOND: [2 * MB, 0, 0, 0]}
    with pytest.raises(SourceError):
        fetch(SOURCE, place, url)
    assert not place.exists()
    hub.branches["main"], hub.breaks = NEW, {}
    fetch(SOURCE, place, url)

    holds(place, hub.commits[OLD], OLD)
    assert hub.sent[FIRST] == hub.sent[SECOND] == 3 * MB


@pytest.mark.parametrize("damage", [b"", b"another content"])
def test_a_damaged_model_is_mended_file_by_file_at_its_own_commit(hub: Hub, url: str, place: Path, damage: bytes) -> None:
    fetch(SOURCE, place, url)
    (place / SECOND).write_bytes(damage)
    hub.branches["main"] = NEW
    hub.sent.clear()

    assert not fetch(SOURCE, place, url).reused
    holds(place, hub.commits[OLD], OLD)
    assert hub.sent == {SECOND: 3 * MB}


@pytest.mark.parametrize("breaks", [[1 * MB, 500_000, 1 * MB], [0, 1], [-MB]])
def test_a_connection_that_ends_in_a_file_is_taken_up_where_it_ended(
    hub: Hub, url: str, place: Path, breaks: list[int]
) -> None:
    hub.breaks = {FIRST: list(breaks)}
    fetch(SOURCE, place, url)

    holds(place, hub.commits[OLD], OLD)
    assert hub.breaks[FIRST] == []
    # What was on its way when a connection is reset is lost; what had come is not asked for again.
    assert 3 * MB <= hub.sent[FIRST] <= (4 * MB if breaks[0] < 0 else 3 * MB)
    begins = [asked.headers.get("Range") for asked in hub.requests if asked.path == f"/{OLD}/{FIRST}?{SIGNATURE}"]
    reached = [sum(breaks[:count]) for count in range(1, len(breaks) + 1)]
    if breaks[0] >= 0:
        assert begins == [None, *(f"bytes={at}-" if at else None for at in reached)]


def test_a_server_that_ignores_ranges_costs_bytes_and_no_correctness(hub: Hub, url: str, place: Path) -> None:
    hub.ranges, hub.breaks = False, {FIRST: [MB]}
    fetch(SOURCE, place, url)

    holds(place, hub.commits[OLD], OLD)
    assert hub.sent[FIRST] == 4 * MB


def test_a_part_that_is_longer_than_the_file_is_begun_again(hub: Hub, url: str, place: Path) -> None:
    hub.breaks = {FIRST: [MB, 0, 0, 0]}
    with pytest.raises(SourceError):
        fetch(SOURCE, place, url)
    (place.with_name(".hf.partial") / f"{FIRST}.part").write_bytes(b"x" * (4 * MB))
    fetch(SOURCE, place, url)

    holds(place, hub.commits[OLD], OLD)


CHILD = """
import sys
from pathlib import Path
from openclaw_core.weights.sources import fetch_model

print("begins", flush=True)
fetch_model(sys.argv[1], Path(sys.argv[2]), lambda line: print(line, flush=True))
"""


def child(source: str, place: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that fetches with what its environment says."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, source, str(place)],
        env={**os.environ, "HF_HUB_OFFLINE": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come about in 60 s"
        time.sleep(0.02)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_a_process_that_is_killed_loses_nothing_that_has_come(hub: Hub, url: str, place: Path) -> None:
    hub.chunk_s = 0.05
    process = child(SOURCE, place, HF_ENDPOINT=url)
    part = place.with_name(".hf.partial") / f"{FIRST}.part"
    wait_for(lambda: size(part) > MB)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.2)
    had, hub.chunk_s = size(part), 0
    hub.sent.clear()
    assert not place.exists()
    fetch(SOURCE, place, url)

    holds(place, hub.commits[OLD], OLD)
    assert hub.sent[FIRST] == 3 * MB - had


def test_of_two_processes_one_downloads_and_the_other_takes_what_it_finds(hub: Hub, url: str, place: Path) -> None:
    hub.chunk_s = 0.02
    processes = [child(SOURCE, place, HF_ENDPOINT=url) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], said
    holds(place, hub.commits[OLD], OLD)
    assert sorted("already there" in lines for lines in said) == [False, True]
    assert hub.sent[FIRST] == hub.sent[SECOND] == 3 * MB


def test_a_process_that_waits_goes_on_when_the_other_one_is_killed(hub: Hub, url: str, place: Path) -> None:
    hub.chunk_s = 0.05
    first = child(SOURCE, place, HF_ENDPOINT=url)
    wait_for(lambda: hub.sent[FIRST] > 0)
    second = child(SOURCE, place, HF_ENDPOINT=url)
    assert second.stdout is not None
    assert ["begins", f"{place}: another process is at work on it; waiting until it is done"] == [
        second.stdout.readline().strip() for _ in range(2)
    ]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    hub.chunk_s = 0
    said = second.communicate(timeout=60)[0]

    assert second.returncode == 0, said
    holds(place, hub.commits[OLD], OLD)


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


def test_the_hubs_own_client_finds_the_stand_in_to_be_a_hub(hub: Hub, url: str, tmp_path: Path) -> None:
    program = (
        "from huggingface_hub import HfApi, snapshot_download\n"
        f"info = HfApi().model_info('{REPOSITORY}', files_metadata=True)\n"
        "print(info.sha, sum(file.size for file in info.siblings), {bool(file.lfs) for file in info.siblings})\n"
        f"snapshot_download('{REPOSITORY}', local_dir='{tmp_path / 'out'}', allow_patterns=['*.safetensors', '*.json'])\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    files = hub.commits[OLD]

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == [OLD, str(sum(map(len, files.values())))]
    assert (tmp_path / "out" / FIRST).read_bytes() == files[FIRST]
    assert (tmp_path / "out/config.json").read_bytes() == files["config.json"]
