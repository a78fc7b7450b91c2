"""npu-smi's table: every layout is read alike, and what is not understood is shown instead of read as nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.cluster.npu import NpuError, generation, npus_of, parse_npus, processes_by_pid

SAMPLES = Path(__file__).parents[1] / "npu_smi"


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text()


def test_an_idle_host_has_chips_without_processes():
    npus = parse_npus(sample("a2_idle"))
    assert (npus.tool, npus.driver, npus.generation, len(npus.chips)) == ("25.2.0", "25.2.0", "A2", 8)
    assert [chip.device for chip in npus.chips] == list(range(8))
    assert {chip.health for chip in npus.chips} == {"OK"}
    assert not processes_by_pid(npus.chips)
    first = npus.chips[0]
    assert (first.bus, first.hbm_used_mb, first.hbm_total_mb) == ("0000:C1:00.0", 3380, 65536)


def test_a_busy_host_has_the_pid_and_memory_of_each_process_even_without_a_name():
    chips = parse_npus(sample("a2_busy")).chips
    assert [(each.pid, each.name, each.mb) for each in chips[0].processes] == [(70411, "python3", 54600), (70419, "", 118)]
    assert chips[0].hbm_used_mb == 58110  # touches the slash
    assert [chip.device for chip in chips if not chip.processes] == [4, 5, 6, 7]


def test_a_chip_in_alarm_tells_no_memory():
    chips = parse_npus(sample("a2_sick")).chips
    assert [(chip.device, chip.health) for chip in chips if chip.health != "OK"] == [(5, "Warning"), (7, "Alarm")]
    assert (chips[7].hbm_used_mb, chips[7].hbm_total_mb) == (None, None)


def test_a_wider_table_with_the_container_s_pid_is_read_by_its_cells():
    npus = parse_npus(sample("a2_wide"))
    assert (npus.driver, npus.generation) == ("26.0.rc2", "A2")
    assert [(each.pid, each.mb) for each in npus.chips[0].processes] == [(90555, 38240), (90600, 120)]


def test_two_chips_a_card_have_devices_of_their_own():
    npus = parse_npus(sample("a3_two_chips"))
    assert (npus.generation, len(npus.chips)) == ("A3", 16)
    assert [(chip.card, chip.chip, chip.device) for chip in npus.chips[2:4]] == [(1, 0, 2), (1, 1, 3)]
    assert [chip.device for chip in npus.chips if chip.processes] == [3]


def test_a_table_whose_ids_have_cells_of_their_own_is_read():
    npus = parse_npus(sample("a5_own_cells"))
    assert (npus.generation, [chip.hbm_used_mb for chip in npus.chips]) == ("A5", [2210, 9120])
    assert [each.pid for each in npus.chips[1].processes] == [44017]
    assert npus.chips[0].bus is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("910B3", "A2"),
        ("910B4-1", "A2"),
        ("Ascend910", "A3"),
        ("910_9392", "A3"),
        ("Ascend950DT", "A5"),
        ("910B", "other"),
        ("310P3", "other"),
    ],
)
def test_the_generation_is_told_by_the_name(name: str, wanted: str):
    assert generation(name) == wanted


@pytest.mark.parametrize("name", ["no_npu", "no_permission"])
def test_a_failure_shows_what_npu_smi_said(name: str):
    first = sample(name).splitlines()[0]
    with pytest.raises(NpuError, match="status 255") as error:
        npus_of(255, sample(name))
    assert first in str(error.value)
    with pytest.raises(NpuError, match="not understood") as error:
        npus_of(0, sample(name))
    assert first in str(error.value)


def test_a_host_without_npu_smi_and_one_where_it_hangs_are_told_apart():
    with pytest.raises(NpuError, match="there is no npu-smi"):
        npus_of(127, "\n")
    with pytest.raises(NpuError, match="did not end within 60 s"):
        npus_of(124, "")


@pytest.mark.parametrize("name", ["a2_idle", "a2_busy", "a2_wide", "a3_two_chips", "a5_own_cells"])
def test_a_table_that_is_cut_anywhere_is_an_error(name: str):
    lines = sample(name).splitlines()
    whole = len(parse_npus(sample(name)).chips)
    for count in range(len(lines)):
        try:
            found = parse_npus("\n".join(lines[:count]))
        except NpuError:
            continue
        # Only the table of processes can end early at a line between two rows: all chips are there.
        assert len(found.chips) == whole
        assert lines[count - 1].startswith("+=")


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (
            "| 3     910B3               | OK ",
            "| x     910B3               | OK ",
            "| 0                         | 0000:82:00.0",
        ),
        ("3401 / 65536", "all of 65536", "all of 65536"),
        ("| No running processes found in NPU 2 ", "| NPU 2 was not asked                 ", "NPU 2 was not asked"),
        ("| No running processes found in NPU 2 ", "| 2 0 | many | python3 | 77 |         ", "2 0 | many"),
        ("| NPU     Chip              | Process id ", "| NPU     Chip              | Processes  ", "Processes"),
    ],
)
def test_a_line_that_is_not_understood_is_shown(old: str, new: str, shown: str):
    text = sample("a2_idle")
    assert old in text
    with pytest.raises(NpuError) as error:
        parse_npus(text.replace(old, new))
    assert shown in str(error.value)


def test_processes_of_a_chip_that_is_not_listed_are_an_error():
    text = sample("a2_busy").replace("| 2       0                 | 81002", "| 9       0                 | 81002")
    with pytest.raises(NpuError, match="NPU 9 chip 0"):
        parse_npus(text)
