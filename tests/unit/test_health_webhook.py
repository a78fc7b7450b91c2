"""The webhook against a real HTTP server: what it sends, how often it tries, and what it never says in the log."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from openclaw_core.config import load_config
from openclaw_core.config.env import external_keys
from openclaw_core.health import Health, examine, webhook
from openclaw_core.health.webhook import ATTEMPTS, Webhook, message
from tests.webhook_receiver import PATH, Receiver

CONFIG = load_config("4b-2nodes")
ILL = [{"step": step, "train/grad_norm": 60.0, "train/opd_abs_mean": 1.0} for step in range(1, 6)]
TOKEN = PATH.rpartition("/")[2]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as made:
        yield made


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WAIT_S", 0.01)


def ill() -> Health:
    """After step 5 OPD's saturation is new, the rest is known."""
    known = [*ILL[:3], ILL[3] | examine(ILL[:4], CONFIG).metrics()]
    return examine([*known, ILL[4]], CONFIG)


async def send(url: str, *healths: Health, form: str = "json") -> list[Any]:
    """Tell, wait until it is sent or given up, and return the log."""
    hook = Webhook(url, CONFIG.health.model_copy(update={"webhook_format": form}), "run-7")
    with capture_logs() as log:
        for health in healths:
            hook.tell(health)
        await hook.finish()
    assert TOKEN not in str(log)
    return log


async def test_json_is_the_whole_verdict(receiver: Receiver):
    assert [entry["event"] for entry in await send(receiver.url, ill())] == ["health_told"]
    (body,) = receiver.received
    assert (body["run"], body["step"], body["state"], body["raised"]) == ("run-7", 5, "stop", ["opd_saturated"])
    assert [finding["rule"] for finding in body["findings"]] == [
        "grad_norm_high",
        "grad_norm_diverging",
        "opd_strong",
        "opd_saturated",
    ]
    assert body["findings"][-1]["since"] == 1
    assert "check that the maximum is subtracted" in body["findings"][-1]["advice"]


@pytest.mark.parametrize(
    ("form", "where"),
    [("slack", ("text",)), ("feishu", ("content", "text")), ("dingtalk", ("text", "content"))],
)
async def test_a_message_for_people_is_where_each_service_wants_it(receiver: Receiver, form: str, where: tuple[str, ...]):
    receiver.answers = [(200, json.dumps({"errcode": 0, "code": 0}))]
    await send(receiver.url, ill(), form=form)
    text: Any = receiver.received[0]
    for key in where:
        text = text[key]
    lines = text.splitlines()
    assert lines[0] == "openclaw run run-7 is stop after step 5; the run is stopped"
    assert lines[1].startswith("warn: Gradients are large: grad_norm = 60, over 10, since step 1; ")
    assert lines[4].startswith("new: stop: OPD saturated: opd_abs_mean = 1, over 0.95, since step 1; ")
    types = {"slack": None, "feishu": receiver.received[0].get("msg_type"), "dingtalk": receiver.received[0].get("msgtype")}
    assert types[form] == (None if form == "slack" else "text")


async def test_a_server_in_trouble_is_asked_again_and_messages_stay_in_order(receiver: Receiver):
    receiver.answers = [(503, "not now"), (429, "slower")]
    first, second = ill(), examine(ILL[:3], CONFIG)
    log = await send(receiver.url, first, second)
    assert [body["step"] for body in receiver.received] == [5, 5, 5, 3]
    assert [entry["event"] for entry in log] == ["health_not_told", "health_not_told", "health_told", "health_told"]


async def test_a_server_that_stays_in_trouble_is_given_up(receiver: Receiver):
    receiver.answers = [(500, "")] * 9
    log = await send(receiver.url, ill())
    assert len(receiver.received) == len(log) == ATTEMPTS
    assert {entry["log_level"] for entry in log} == {"warning"}


@pytest.mark.parametrize(
    ("form", "answer", "reason"),
    [
        ("json", (404, "no such hook"), "HTTP 404"),
        ("dingtalk", (200, '{"errcode": 310000, "errmsg": "keywords not in content"}'), "code 310000: keywords not in content"),
        ("feishu", (200, '{"code": 19021, "msg": "sign match fail"}'), "code 19021: sign match fail"),
        ("feishu", (200, "ok"), "is health.webhook_format right?"),
    ],
)
async def test_a_refusal_is_final(receiver: Receiver, form: str, answer: tuple[int, str], reason: str):
    receiver.answers = [answer]
    (entry,) = await send(receiver.url, ill(), form=form)
    assert (entry["event"], entry["log_level"], len(receiver.received)) == ("health_not_told", "warning", 1)
    assert reason in entry["reason"]


@pytest.mark.parametrize("url", [f"ftp://host/{TOKEN}", f"hooks/{TOKEN}", f"http://host:port/{TOKEN}"])
async def test_what_is_no_address_is_said_and_fails_nothing(url: str):
    (entry,) = await send(url, ill())
    assert "is no http(s) address" in entry["reason"] and "OPENCLAW_HEALTH_WEBHOOK" in entry["reason"]


async def test_nobody_there_is_a_warning():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    log = await send(f"http://127.0.0.1:{port}/{TOKEN}", ill())
    assert [entry["reason"] for entry in log] == [f"ConnectError (attempt {i} of {ATTEMPTS})" for i in range(1, ATTEMPTS + 1)]


async def test_the_service_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webhook, "FINISH_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(5):
            await send(f"http://127.0.0.1:{silent.getsockname()[1]}/hook", ill())


def test_the_address_is_a_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENCLAW_HEALTH_WEBHOOK", "https://hooks.example/x")
    assert external_keys()["health_webhook"] == "https://hooks.example/x"


def test_a_recovery_is_told_in_one_line():
    before = {"health/state": "warn", "health/findings": {"grad_norm_high": 1}}
    well = examine([{"step": 8, **before}, {"step": 9, "train/grad_norm": 3.0}], CONFIG)
    assert message("r", well, "slack") == {"text": "openclaw run r is healthy after step 9"}
