"""The pictures of a study, as SVG in HTML: parallel coordinates, history, slices, intermediate values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import combinations
from typing import Any

from ...callbacks.report.chart import Scale, fitting, framed, short

MOST_AXES = 12
"""Parameters with axes of their own, the most important ones first."""
Points = dict[int, float]
"""A number for each trial, by the number of the trial."""


class StudyPictures:
    """Draws a study; a trial looks the same in every picture, and has `data-trial` for the page's script.

    Args:
        study: of optuna.
        names: the objectives.
        best: the numbers of the best trials.
        parameters: those to draw.
    """

    def __init__(self, study: Any, names: Sequence[str], best: set[int], parameters: Sequence[str]) -> None:
        self.trials = study.get_trials(deepcopy=False)
        self.names, self.best, self.parameters = names, best, parameters
        self.directions = [one.name.lower() for one in study.directions]
        done = [one for one in self.trials if one.state.name == "COMPLETE" and all(map(math.isfinite, one.values))]
        self.values = [{trial.number: trial.values[index] for trial in done} for index in range(len(names))]
        order = sorted(self.values[0], key=self.values[0].__getitem__, reverse=self.directions[0] == "maximize")
        self._shares: dict[int, int] = {
            number: 100 - round(80 * place / max(len(order) - 1, 1)) for place, number in enumerate(order)
        }

    def figures(self) -> str:
        """Return all pictures that the study has enough trials for."""
        if len(self.values[0]) < 2:
            return ""
        made = [self._parallel()]
        for name, values in zip(self.names, self.values, strict=True):
            made.append(self._history(name, values))
        for (first, left), (second, right) in combinations(zip(self.names, self.values, strict=True), 2):
            made.append(self._scatter(f"{second} over {first}", left, right))
        if len(self.names) == 1:
            made.append(self._intermediate())
        for name, values in zip(self.names, self.values, strict=True):
            made += [self._slice(parameter, name, values) for parameter in self.parameters]
        return f'<div class="charts">{"".join(made)}</div>'

    def _mark(self, number: int, kind: str, way: str) -> str:
        """Return a line or dot of a trial: the better it is the stronger, the best one in a colour of its own."""
        if number in self.best:
            look = 'class="{} best"'
        elif number in self._shares:
            look = f'class="{{}}" style="--share:{self._shares[number]}%"'
        else:
            look = f'class="{{}} {self.trials[number].state.name.lower()}"'
        return f'<path {look.format(kind)} data-trial="{number}" d="{way}"/>'

    def _marks(self, made: dict[int, str]) -> str:
        """Join marks, the best trials on top."""
        return "".join(made[number] for number in sorted(made, key=lambda one: self._shares.get(one, 0)))

    def _dots(self, across: Scale, xs: Points, up: Scale, ys: Points) -> str:
        return self._marks({n: self._mark(n, "dots", f"M{_x(across, xs[n])} {_y(up, ys[n])}h0") for n in xs if n in ys})

    def _history(self, name: str, values: Points) -> str:
        choose = max if self.directions[self.names.index(name)] == "maximize" else min
        up, across = _fitting(values), Scale(-0.5, len(self.trials) - 0.5)
        way, best = "", None
        for number, value in values.items():
            before, best = best, value if best is None else choose(best, value)
            way += (
                f"M{_x(across, number)} {_y(up, best)}" if before is None else f"H{_x(across, number)}V{_y(up, best)}"
            )
        line = f'<path class="line c1" d="{way}H1000"/>'
        dots = self._dots(across, {number: float(number) for number in values}, up, values)
        return _figure(f"{name} by trial", framed(name, line + dots, up, across), "the line is the best so far")

    def _scatter(self, title: str, xs: Points, ys: Points, unit: str = "") -> str:
        across, up = _fitting(xs), _fitting(ys)
        return _figure(title, framed(title, self._dots(across, xs, up, ys), up, across), unit)

    def _slice(self, parameter: str, name: str, values: Points) -> str:
        axis = _Axis(parameter, self.trials)
        xs = {number: 1000 * place for number, place in axis.places.items()}
        up, title = _fitting(values), f"{name} over {parameter}"
        dots = self._dots(Scale(0, 1000), xs, up, values)
        below = "".join(f'<span style="left:{100 * at:.1f}%">{text}</span>' for at, text in axis.ticks)
        plot = framed(title, dots, up, Scale(0, 1)).partition('<div class="x">')[0]
        return _figure(title, f'{plot}<div class="x">{below}</div></div>', axis.unit)

    def _intermediate(self) -> str:
        """Draw what was reported in each trial, beside a list of trials that scrolls."""
        reports: dict[int, Points] = {
            trial.number: {s: v for s, v in sorted(trial.intermediate_values.items()) if math.isfinite(v)}
            for trial in self.trials
        }
        reports = {number: points for number, points in reports.items() if points}
        if not reports:
            return ""
        up = fitting([value for points in reports.values() for value in points.values()], may_be_logarithmic=True)
        across = Scale(0, max(max(points) for points in reports.values()))
        lines = {
            number: self._mark(
                number,
                "line" if len(points) > 1 else "dots",
                f"M{'L'.join(f'{_x(across, s)} {_y(up, v)}' for s, v in points.items())}h0",
            )
            for number, points in reports.items()
        }
        ranked = sorted(reports, key=lambda number: self._shares.get(number, -number), reverse=True)
        last = {number: self.values[0].get(number, [*reports[number].values()][-1]) for number in ranked}
        keys = "".join(
            f'<span data-trial="{n}">{n}<b>{short(last[n])}</b>{"" if n in self.values[0] else self._state(n)}</span>'
            for n in ranked
        )
        plot = framed("reports", self._marks(lines), up, across)
        return _figure(
            "Evaluations during the trials", f'<div class="beside">{plot}<div class="keys">{keys}</div></div>'
        )

    def _state(self, number: int) -> str:
        return f"<i>{self.trials[number].state.name.lower()}</i>"

    def _parallel(self) -> str:
        axes = [_Axis(name, self.trials) for name in self.parameters]
        axes += [_Axis(name, self.trials, values) for name, values in zip(self.names, self.values, strict=True)]
        ways: dict[int, list[str]] = {}
        told = lines = ""
        for index, axis in enumerate(axes):
            left = 1000 * index / max(len(axes) - 1, 1)
            lines += f'<line class="grid" x1="{left:.1f}" x2="{left:.1f}" y1="0" y2="1000"/>'
            told += f'<b style="left:{left / 10:.2f}%" title="{escape(axis.name)}">{escape(axis.name)}</b>'
            told += "".join(
                f'<span style="left:{left / 10:.2f}%;top:{100 - 100 * at:.1f}%">{text}</span>'
                for at, text in axis.ticks
            )
            for number, place in axis.places.items():
                ways.setdefault(number, []).append(f"{left:.1f} {1000 - 1000 * place:.1f}")
        marks = self._marks({number: self._mark(number, "line", f"M{'L'.join(way)}") for number, way in ways.items()})
        svg = f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img">{lines}{marks}</svg>'
        unit = "a line is a trial, the better the stronger; point at one to find it everywhere"
        return _figure("Parameters and objective", f'<div class="parallel">{svg}{told}</div>', unit)


class _Axis:
    """Where each trial is on the axis of a parameter, from 0 to 1.

    Args:
        name: of the parameter, or of the objective.
        trials: of the study.
        values: of the trials; by default those of the parameter.
    """

    def __init__(self, name: str, trials: Sequence[Any], values: Points | None = None) -> None:
        self.name, self.unit = name, ""
        declared = [trial.distributions[name] for trial in trials if name in trial.distributions and values is None]
        found = (
            {trial.number: trial.params[name] for trial in trials if name in trial.params} if values is None else values
        )
        if declared and hasattr(declared[0], "choices"):
            choices = list(dict.fromkeys(choice for one in declared for choice in one.choices))
            middles = {choice: (index + 0.5) / len(choices) for index, choice in enumerate(choices)}
            self.places = {number: middles[value] for number, value in found.items()}
            self.ticks = [(at, escape(short(c) if isinstance(c, float) else str(c))) for c, at in middles.items()]
            return
        is_logarithmic = bool(declared and declared[0].log)
        self.unit = "logarithmic" if is_logarithmic else ""
        scale = _fitting(found, is_logarithmic)
        self.places = {number: scale.place(value) for number, value in found.items()}
        self.ticks = [(scale.place(tick), short(tick)) for tick in scale.ticks if 0 <= scale.place(tick) <= 1]


def _fitting(values: Points, is_logarithmic: bool = False) -> Scale:
    if is_logarithmic:
        low, high = min(values.values()), max(values.values())
        return Scale(low / 1.2, high * 1.2, is_logarithmic=True)
    return fitting([value for value in values.values() if math.isfinite(value)] or [0.0])


def _x(across: Scale, value: float) -> float:
    return round(1000 * across.place(value), 1)


def _y(up: Scale, value: float) -> float:
    return round(1000 * (1 - up.place(value)), 1)


def _figure(title: str, inside: str, unit: str = "") -> str:
    told = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    return f'<figure class="card"><figcaption><h2>{escape(title)}{told}</h2></figcaption>{inside}</figure>'
