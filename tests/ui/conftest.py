"""The cockpit, a run of which the first attempt fails, and the browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from flows.local_prefect import LocalPrefect, stop_prefect
from openclaw_core.config import load_config
from tests.ports import free_ports
from tests.ui.browser import Window, opened_window, shoot
from tests.ui.cockpit import Cockpit


@pytest.fixture(scope="session")
def cockpit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cockpit]:
    """Server, worker and deployments; ended by recorded pid, with all that runs have left, also if a test fails."""
    place, ports = tmp_path_factory.mktemp("cockpit"), free_ports()
    prefect = LocalPrefect(place, ports["ports.prefect"])
    cockpit = Cockpit(prefect, {name.removeprefix("ports."): port for name, port in ports.items()}, place / "given-model")
    try:
        prefect.start(load_config("local-cpu", ports))
        yield cockpit
    finally:
        stop_prefect(place)
        cockpit.clear()
    assert not [process.pid for process in psutil.process_iter() if str(place) in " ".join(_command(process))]


@pytest.fixture(scope="session")
def window() -> Iterator[Window]:
    """The one browser of the session."""
    with opened_window() as window:
        yield window


@pytest.fixture
def page(window: Window) -> Iterator[Page]:
    """A new page. Its test fails if it, or a page before it, has asked another machine for something."""
    page = window.page()
    yield page
    page.close()
    assert window.asked
    assert not window.outside, "the UI asks for what is not on this machine"


@pytest.fixture(scope="session")
def failed(cockpit: Cockpit) -> str:
    """Flow run that asks for a model that is not there."""
    flow_run = cockpit.begin(cockpit.parameters(run_id="first-steps"))
    cockpit.wait(flow_run, "Failed")
    return flow_run


@pytest.fixture(scope="session")
def finished(cockpit: Cockpit, failed: str, window: Window, tiny_llama_dir: Path) -> str:
    """The same flow run, retried by the button on its page once the model is there."""
    shutil.copytree(tiny_llama_dir, cockpit.model)
    page = window.page()
    page.goto(cockpit.page_of(failed))
    expect(page.get_by_text("Failed", exact=True)).to_be_visible()
    page.get_by_role("button", name="Retry").click()
    again = page.get_by_text("This will retry flow run first-steps.")
    expect(again).to_be_visible()
    shoot(page, "retry")
    with page.expect_response(lambda response: response.url.endswith(f"/flow_runs/{failed}/set_state")):
        page.get_by_role("button", name="Retry", exact=True).last.click()
    # Its graph, drawn without a graphics card, takes half a core from the run while it is looked at.
    page.close()
    cockpit.wait(failed, "Completed")
    return failed


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
