"""The log of a name keeps what every container of that name wrote, each once."""

from pathlib import Path

from openclaw_core.cluster.kept_logs import keep_log

FIRST, SECOND = "a" * 64, "b" * 64


def test_a_later_container_of_the_name_is_written_below_the_earlier_one(tmp_path: Path):
    file = tmp_path / "feeder.log"
    keep_log(file, FIRST, "one\n")
    keep_log(file, FIRST, "one\ntwo\n")
    keep_log(file, SECOND, "three\n")
    keep_log(file, SECOND, "three\nfour\n")
    a, b = (f"=== container {each[:12]} ===\n" for each in (FIRST, SECOND))
    assert file.read_text() == f"{a}one\ntwo\n{b}three\nfour\n"
    assert list(tmp_path.iterdir()) == [file]
