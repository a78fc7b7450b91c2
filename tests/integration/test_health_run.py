"""`openclaw-rl run` of a tiny model under a rule it cannot meet: stopped with a checkpoint, told once, taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_core.rundir import RunDir
from openclaw_core.trainer import retention
from tests.integration.test_run import STEPS, start
from tests.models import tiny_llama
from tests.ports import free_ports
from tests.webhook_receiver import Receiver


@pytest.mark.drills
@pytest.mark.timeout(900)
def test_an_ill_run_stops_with_a_checkpoint_and_goes_on_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama(tmp_path / "hf", seed=3)
    settings: dict[str, object] = {
        "model.source": f"file://{tmp_path / 'hf'}",
        "train.save_interval": STEPS,
        "health.limits.grad_norm_diverging.bound": 0.001,
        "health.limits.grad_norm_diverging.steps": 1,
        **free_ports(),
    }
    run = RunDir(tmp_path / "runs" / "r")
    with Receiver().serving() as receiver:
        monkeypatch.setenv("OPENCLAW_HEALTH_WEBHOOK", receiver.url)
        output: list[str] = []
        for code in (1, 0):
            process = start(tmp_path, settings)
            try:
                told, _ = process.communicate(timeout=400)
            finally:
                process.kill()
            output.append(told)
            assert process.returncode == code, told
            if code == 1:
                assert retention.latest(run.checkpoints) == retention.step_directory(run.checkpoints, 1)
    assert "error: stopped: health after step 1: stop\nTraining diverges: grad_norm = " in output[0]
    assert "A checkpoint is written; a retry goes on from there" in output[0]
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["health/action"] for row in rows] == ["stop", *[None] * (STEPS - 1)]
    assert {row["train/w_opd"] for row in rows} == {1.0}
    assert [(body["run"], body["step"], body["raised"]) for body in receiver.received] == [("r", 1, ["grad_norm_diverging"])]
    assert receiver.url not in "".join(output) + "".join(log.read_text() for log in run.logs.glob("*.log"))
