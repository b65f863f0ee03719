"""Losses and learning rates as an SVG that stands alone: for model cards, drawn without any library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from .chart import COLORS, MANY_POINTS, MOST_POINTS, Scale, fitting, short
from .curves import Curve, Panel, Points, panels, smoothed, thinned

_WIDTH = 1000
_LEFT, _RIGHT, _TOP, _BELOW = 84, 24, 44, 64
_HEIGHTS = {"Loss": 400, "Learning rate": 110}
_LINE_OF_LEGEND = 26
_LETTER = 8.5
"""About the width of a letter of the legend."""
_MOST_NAMES = 12
_MOST_GAPS = 200


def draw_loss_picture(log_history: Iterable[dict[str, Any]]) -> str | None:
    """Return an SVG of the losses and learning rates over the steps; None if no loss was logged."""
    drawn = {panel.title: panel for panel in panels(log_history) if panel.title in _HEIGHTS}
    if "Loss" not in drawn:
        return None
    last = max(step for panel in drawn.values() for curve in panel.curves for step, _ in curve.points)
    across, top, parts = Scale(0, max(last, 1)), 0, []
    for title, panel in drawn.items():
        frame = _Frame(panel, across, top + _TOP, _HEIGHTS[title])
        parts += frame.parts(is_lowest=title == list(drawn)[-1])
        top = frame.bottom
    height = top + _BELOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="16" fill="#344054" role="img">\n'
        f'<title>Loss over the steps</title>\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "".join(f"{part}\n" for part in parts)
        + "</svg>\n"
    )


@dataclass(frozen=True)
class _Frame:
    """The place of one panel in the picture."""

    panel: Panel
    across: Scale
    top: int
    height: int

    @property
    def bottom(self) -> int:
        return self.top + self.height

    def parts(self, *, is_lowest: bool) -> Iterator[str]:
        """All that is drawn, what lies behind first."""
        panel = self.panel
        values = [value for curve in panel.curves for _, value in curve.finite]
        up = fitting(values or [0.0], from_zero=panel.from_zero, may_be_logarithmic=panel.may_be_logarithmic)
        yield _text(_LEFT, self.top - 16, _title(panel, up), 'font-weight="bold" font-size="20"')
        yield from self._axes(up, numbers_below=is_lowest)
        for curve in panel.curves:
            yield from (self._line_at(step) for step, _ in curve.others[:_MOST_GAPS])
        for index, curve in enumerate(panel.curves):
            if curve.finite:
                yield from self._curve(curve, COLORS[index % len(COLORS)], up)
        if not values:
            yield _text(_WIDTH / 2, self.top + self.height / 2, "no finite values", 'text-anchor="middle"')
        if panel.title == "Loss":
            yield from self._legend()

    def _axes(self, up: Scale, *, numbers_below: bool) -> Iterator[str]:
        for tick in up.ticks:
            y = self._y(up, tick)
            yield f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="#e4e7ec"/>'
            yield _text(_LEFT - 10, y + 5, short(tick), 'text-anchor="end"')
        yield f'<path d="M{_LEFT} {self.top}V{self.bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="#98a2b3"/>'
        if not numbers_below:
            return
        for tick in self.across.ticks:
            if 0 <= self.across.place(tick) <= 1:
                yield _text(self._x(tick), self.bottom + 22, short(tick), 'text-anchor="middle"')
        yield _text((_LEFT + _WIDTH - _RIGHT) / 2, self.bottom + 48, "step", 'text-anchor="middle"')

    def _curve(self, curve: Curve, color: str, up: Scale) -> Iterator[str]:
        """A curve; of a noisy one with many points the mean is what stands out."""
        points = curve.finite
        seen = thinned(points, MOST_POINTS)
        if self.panel.is_noisy and len(points) >= MANY_POINTS:
            yield self._path(seen, up, f'stroke="{color}" stroke-opacity="0.3"')
            mean = smoothed(points, is_logarithmic=up.is_logarithmic)
            seen = [*mean[:: max(len(mean) // MOST_POINTS, 1)], mean[-1]]
        yield self._path(seen, up, f'stroke="{color}" stroke-width="2.5" stroke-linejoin="round"')
        if len(points) == 1 or (curve.is_sparse and len(points) < MANY_POINTS):
            dots = "".join(f"M{self._x(step)} {self._y(up, value)}h0" for step, value in points)
            yield f'<path d="{dots}" stroke="{color}" stroke-width="8" stroke-linecap="round"/>'

    def _path(self, points: Points, up: Scale, style: str) -> str:
        places = "L".join(f"{self._x(step)} {self._y(up, value)}" for step, value in points)
        return f'<path d="M{places}" fill="none" {style}/>'

    def _line_at(self, step: float) -> str:
        """Return a vertical line at a step whose value is not finite."""
        return f'<path d="M{self._x(step)} {self.top}V{self.bottom}" stroke="#d92d20" stroke-dasharray="2 3"/>'

    def _legend(self) -> Iterator[str]:
        curves = self.panel.curves[:_MOST_NAMES]
        names = [label_with_lowest(curve) for curve in curves]
        width, height = 20 + _LETTER * max(map(len, names)), _LINE_OF_LEGEND * len(names)
        left = _WIDTH - _RIGHT - width
        place = f'x="{left - 44:.1f}" y="{self.top - 4}" width="{width + 44:.1f}" height="{height}"'
        yield f'<rect {place} fill="#ffffff" fill-opacity="0.8"/>'
        for index, name in enumerate(names):
            y = self.top + 10 + index * _LINE_OF_LEGEND
            color = COLORS[index % len(COLORS)]
            yield f'<path d="M{left - 36:.1f} {y}h28" stroke="{color}" stroke-width="4"/>'
            yield _text(left, y + 5, name)

    def _x(self, step: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * self.across.place(step), 1)

    def _y(self, up: Scale, value: float) -> float:
        return round(self.bottom - self.height * up.place(value), 1)


def _title(panel: Panel, up: Scale) -> str:
    return f"{panel.title} (logarithmic)" if up.is_logarithmic else panel.title


def label_with_lowest(curve: Curve) -> str:
    """Return the label, for an evaluation with its lowest value and the step of it."""
    if not curve.is_sparse or not curve.finite:
        return curve.label
    value, step = min((value, step) for step, value in curve.finite)
    return f"{curve.label} (lowest {short(value)} at step {short(step, 6)})"


def _text(x: float, y: float, text: str, style: str = "") -> str:
    """Text as it is, without what XML has no letters for."""
    shown = escape("".join(letter for letter in text if letter.isprintable()))
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{shown}</text>'
