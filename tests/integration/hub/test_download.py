"""Models of a hub: what comes, and what is gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_core.weights.errors import SourceError
from tests.hub_server import SIGNATURE, Hub
from tests.integration.hub.parts import FIRST, MB, NEEDED, NEW, OLD, REPOSITORY, SECOND, SOURCE, child, fetch, holds


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
