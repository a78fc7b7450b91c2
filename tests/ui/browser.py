"""A headless browser that reaches this machine alone, and what the tests do with its pages."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
from PIL import Image
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect, sync_playwright

from tests.conftest import REPOSITORY

SCREENSHOTS = REPOSITORY / ".state" / "screenshots"
CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 60_000
"""How long something may take to appear: page, server, worker and run share the cores."""


STATES_BAR = 24
"""Pixels at the lower edge of a graph."""


class Window:
    """A window of the browser. Requests to other machines are refused, and remembered as all are."""

    def __init__(self, context: BrowserContext) -> None:
        self.asked: list[str] = []
        self._context = context
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        context.on("request", lambda request: self.asked.append(request.url))
        context.on("page", lambda page: page.on("websocket", lambda socket: self.asked.append(socket.url)))
        context.route(lambda url: not _of_this_machine(url), _refuse)

    def page(self) -> Page:
        return self._context.new_page()

    @property
    def outside(self) -> list[str]:
        """What was asked of other machines."""
        return [url for url in self.asked if not _of_this_machine(url)]


@contextmanager
def opened_window() -> Iterator[Window]:
    """Headless Chromium; without names, since no request has to leave this machine."""
    with sync_playwright() as playwright:
        # Root has no sandbox, and a container may have little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield Window(browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC"))
        browser.close()


def shoot(page: Page, name: str) -> None:
    """Keep a picture of what the page shows."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")


def field(page: Page | Locator, name: str) -> Locator:
    """A parameter in the form of a deployment, by its name."""
    return page.locator(".schema-form-property", has=page.get_by_text(f"{name} (Optional)", exact=True)).last


def node_bars(graph: Locator) -> list[tuple[int, int, int]]:
    """Lower edges of the completed nodes of a run's graph, which is drawn on a canvas: (left, row, width) in pixels, the
    widest first. The bar of states below the nodes is left out."""
    picture = np.asarray(Image.open(io.BytesIO(graph.screenshot())).convert("RGB")).astype(int)[:-STATES_BAR]
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    filled = (green - red > 80) & (green - blue > 60)
    edges = filled[:-1] & ~filled[1:]
    bars: list[tuple[int, int, int]] = []
    for row in np.flatnonzero(edges.any(axis=1)):
        ends = np.flatnonzero(np.diff(np.concatenate([[0], edges[row].astype(int), [0]])))
        bars += [(int(left), int(row), int(right - left)) for left, right in zip(ends[::2], ends[1::2], strict=True)]
    return sorted((bar for bar in bars if bar[2] >= 6), key=lambda bar: -bar[2])


def unfold(page: Page, graph: Locator) -> None:
    """Click the arrow of the node that has others inside: the one whose click draws more nodes."""
    before = node_bars(graph)
    for left, row, _ in before[:4]:
        graph.click(position={"x": left + 14, "y": row - 14})
        for _ in range(15):
            page.wait_for_timeout(200)
            if len(node_bars(graph)) >= len(before) + 3:
                return
        # It has none inside and is selected now: a click beside the nodes ends that.
        graph.click(position={"x": 4, "y": 200})
    raise AssertionError(f"no node of the graph can be unfolded; drawn are {before}")


def _of_this_machine(url: str) -> bool:
    """A page's own data, or loopback."""
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or parts.hostname == "127.0.0.1"


def _refuse(route: Route) -> None:
    route.abort("blockedbyclient")
