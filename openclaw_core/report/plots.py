"""The plots of a run: small multiples in one SVG, whose size does not grow with the number of steps."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from openclaw_core.report.panels import PANELS, Bounds, Panel
from openclaw_core.report.series import Row, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
WIDTH, HEIGHT = 3.3, 2.0
"""Of a panel, inches."""
COLOURS = ("#1f5fa8", "#d9730d", "#7a8b99", "#7b3fa0")
HEALTHY, INK, GRID = "#2e9e5b", "#333333", "#e4e4e4"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, and selectable
    "svg.hashsalt": "openclaw",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "path.simplify": False,
}
_FONT = "font-family: 'DejaVu Sans', 'Helvetica', 'Arial', sans-serif; "
_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
_FRACTION = re.compile(r"(\.[1-9])\d+|\.0\d*")


def plots_svg(rows: Sequence[Row], bounds: Mapping[str, Bounds]) -> str:
    """All panels over the steps of ``rows``, on white. ``bounds``: metric → its healthy range, which is shaded."""
    with matplotlib.rc_context(_STYLE):
        figure = _figure(rows, bounds)
        canvas, buffer = FigureCanvasSVG(figure), io.StringIO()
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _compact(buffer.getvalue())


def _figure(rows: Sequence[Row], bounds: Mapping[str, Bounds]) -> Figure:
    lines = -(-len(PANELS) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * WIDTH, lines * HEIGHT), facecolor="white")
    grid = figure.subplots(lines, COLUMNS, squeeze=False)
    figure.subplots_adjust(left=0.05, right=0.985, top=0.965, bottom=0.045, hspace=0.42, wspace=0.2)
    for panel, axes in zip(PANELS, grid.flat, strict=False):
        _draw(axes, panel, rows, bounds)
    for axes in grid.flat[len(PANELS) :]:
        axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel("step", fontsize=7, color=INK, labelpad=1)
    return figure


def _draw(axes: Axes, panel: Panel, rows: Sequence[Row], bounds: Mapping[str, Bounds]) -> None:
    drawn = _stack(axes, panel, rows) if panel.stacked else _lines(axes, panel, rows)
    axes.set_title(panel.title, fontsize=8.5, color=INK, loc="left", pad=4)
    if rows and len(panel.lines) == 1:
        axes.set_title(_last(rows, *panel.lines.values()), fontsize=7.5, color=COLOURS[0], loc="right", pad=4)
    axes.tick_params(labelsize=7, colors=INK, left=False, bottom=False)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color="#999999", linewidth=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    first, last = (rows[0]["step"], rows[-1]["step"]) if rows else (0, 1)
    axes.set_xlim(first - 0.5, last + 0.5)
    _limit(axes, panel)
    if not drawn:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", fontsize=7, color="#888888")
    elif len(panel.lines) > 1:
        columns = len(panel.lines) if panel.stacked else 1
        look: dict[str, Any] = {"fontsize": 6.5, "labelcolor": INK, "frameon": False, "handlelength": 1.2, "borderpad": 0.1}
        axes.legend(loc="upper left" if panel.stacked else "best", ncols=columns, columnspacing=1, **look)
    for healthy in {bounds[key] for key in panel.lines.values() if key in bounds}:
        _shade(axes, healthy)


def _last(rows: Sequence[Row], key: str) -> str:
    """The newest step's value."""
    value = rows[-1].get(key)
    return "" if value is None else f"{value:.3g}"


def _lines(axes: Axes, panel: Panel, rows: Sequence[Row]) -> bool:
    drawn = False
    for (label, key), colour in zip(panel.lines.items(), COLOURS, strict=False):
        found = series(rows, key)
        if found is None:
            continue
        drawn = True
        if found.thinned:
            axes.fill_between(found.step, found.low, found.high, color=colour, alpha=0.18, linewidth=0)
        marker = "o" if len(found.step) <= 30 else ""
        axes.plot(found.step, found.mean, color=colour, linewidth=1, label=label, marker=marker, markersize=1.8)
    return drawn


def _stack(axes: Axes, panel: Panel, rows: Sequence[Row]) -> bool:
    """Of the steps that have all parts: those of a step that was taken up again are not known."""
    whole = [row for row in rows if all(row.get(key) is not None for key in panel.lines.values())]
    parts = [series(whole, key) for key in panel.lines.values()]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return False
    heights = [part.mean for part in found]
    axes.stackplot(found[0].step, *heights, labels=list(panel.lines), colors=COLOURS, alpha=0.8, linewidth=0)
    return True


def _limit(axes: Axes, panel: Panel) -> None:
    """The metric's own range where it is known, with a little room so that a line at its end is seen."""
    low, high = panel.limits
    if low is not None and high is not None:
        room = 0.04 * (high - low)
        axes.set_ylim(low - room, high + room)
    elif low is not None:
        room = 1.25 if panel.stacked else 1.08  # the legend's place
        axes.set_ylim(low, low + room * max(axes.dataLim.y1 - low, 1e-9))


def _shade(axes: Axes, bounds: Bounds) -> None:
    """The healthy range, as far as the axis shows it: a bound that is far away does not flatten the curve."""
    bottom, top = axes.get_ylim()
    low, high = (bottom if bounds[0] is None else bounds[0]), (top if bounds[1] is None else bounds[1])
    axes.axhspan(max(low, bottom), min(high, top), color=HEALTHY, alpha=0.09, linewidth=0, zorder=0)
    for bound in bounds:
        if bound is not None and bottom <= bound <= top:
            axes.axhline(bound, color=HEALTHY, linewidth=0.6, linestyle=(0, (4, 3)))
    axes.set_ylim(bottom, top)


def _compact(svg: str) -> str:
    """The same picture in half the text: without the names that nothing refers to, and coordinates in tenths of a point."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace(_FONT, "").replace('<style type="text/css">', f"<style>text{{{_FONT}}}")
    svg = re.sub(r"<g id=\"[^\"]*\">", "<g>", svg)
    svg = re.sub(r" transform=\"rotate\(-?0 [^\"]*\)\"", "", svg)
    svg = _COORDINATES.sub(_short, svg)
    return re.sub(r"\s*\n\s*", "", svg)


def _short(attribute: re.Match[str]) -> str:
    """Coordinates without the digits that no eye sees, and without the blanks that a path does not need."""
    text = _FRACTION.sub(lambda found: found[1] or "", attribute[0])
    text = re.sub(r"\s*([MLz])\s*", r"\1", text)
    return re.sub(r"(?<=\d) -(?=\d)", "-", text)
