"""The pictures of a study, as SVG in HTML: parallel coordinates, history, slices, intermediate values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import accumulate, combinations, pairwise
from typing import Any

from ...callbacks.report.chart import Scale, fitting, framed, place, short, way
from ...callbacks.report.document import charts, figure

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
        self._shares = {number: 100 - round(80 * rank / max(len(order) - 1, 1)) for rank, number in enumerate(order)}

    def figures(self) -> str:
        """Return all pictures that the study has enough trials for."""
        if len(self.values[0]) < 2:
            return ""
        objectives = list(zip(self.names, self.values, strict=True))
        made = [self._parallel(), *(self._history(name, values) for name, values in objectives)]
        for (first, xs), (second, ys) in combinations(objectives, 2):
            made.append(self._scatter(f"{second} over {first}", _Axis(first, self.trials, xs), ys))
        if len(objectives) == 1:
            made.append(self._intermediate())
        axes = [_Axis(name, self.trials) for name in self.parameters]
        made += [self._scatter(f"{name} over {axis.name}", axis, ys) for name, ys in objectives for axis in axes]
        return charts(made)

    def _mark(self, number: int, kind: str, places: Sequence[str]) -> str:
        """Return a line or dots of a trial: the better it is the stronger, the best one in a colour of its own."""
        state = "best" if number in self.best else self.trials[number].state.name.lower()
        share = f' style="--share:{self._shares[number]}%"' if number in self._shares else ""
        path = way(places, dots=kind == "dots")
        return f'<path class="{kind} {state}"{share} data-trial="{number}" d="{path}"/>'

    def _marks(self, made: dict[int, str]) -> str:
        """Join marks, the best trials on top."""
        return "".join(made[number] for number in sorted(made, key=lambda one: self._shares.get(one, 0)))

    def _dots(self, across: Points, up: Points) -> str:
        return self._marks({n: self._mark(n, "dots", [place(across[n], up[n])]) for n in across if n in up})

    def _history(self, name: str, values: Points) -> str:
        choose = max if self.directions[self.names.index(name)] == "maximize" else min
        up, across = _Axis(name, self.trials, values), Scale(-0.5, len(self.trials) - 0.5)
        dots = {number: across.place(number) for number in values}
        best = list(accumulate(up.places.values(), choose))
        changes = zip(dots.values(), pairwise([best[0], *best]), strict=True)
        steps = [place(at, height) for at, heights in changes for height in heights]
        line = f'<path class="line c1" d="{way([*steps, place(1, best[-1])])}"/>'
        plot = framed(name, _grid(up) + line + self._dots(dots, up.places), up.labels, across.labels)
        return figure(f"{name} by trial", plot, "the line is the best so far")

    def _scatter(self, title: str, across: _Axis, values: Points) -> str:
        up = _Axis("", self.trials, values)
        plot = framed(title, _grid(up) + self._dots(across.places, up.places), up.labels, across.labels)
        return figure(title, plot, across.unit)

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
        across = Scale(0, max(1, *(max(points) for points in reports.values())))
        lines = {}
        for number, points in reports.items():
            places = [place(across.place(step), up.place(value)) for step, value in points.items()]
            lines[number] = self._mark(number, "line" if len(points) > 1 else "dots", places)
        ranked = sorted(reports, key=lambda number: self._shares.get(number, -number), reverse=True)
        keys = "".join(self._key(number, [*reports[number].values()][-1]) for number in ranked)
        plot = framed("reports", _grid(up) + self._marks(lines), up.labels, across.labels)
        inside = f'<div class="beside">{plot}<div class="keys">{keys}</div></div>'
        return figure("Evaluations during the trials", inside)

    def _key(self, number: int, last: float) -> str:
        value = self.values[0].get(number)
        state = f"<i>{self.trials[number].state.name.lower()}</i>" if value is None else ""
        return f'<span data-trial="{number}">{number}<b>{short(last if value is None else value)}</b>{state}</span>'

    def _parallel(self) -> str:
        axes = [_Axis(name, self.trials) for name in self.parameters]
        axes += [_Axis(name, self.trials, values) for name, values in zip(self.names, self.values, strict=True)]
        ways: dict[int, list[str]] = {}
        texts = lines = ""
        for index, axis in enumerate(axes):
            x = index / max(len(axes) - 1, 1)
            name, left = escape(axis.name), f"left:{100 * x:.2f}%"
            lines += f'<path class="grid" d="M{place(x, 0)}V0"/>'
            texts += f'<b style="{left}" title="{name}">{name}</b>'
            for at, text in axis.labels:
                texts += f'<span style="{left};top:{100 - 100 * at:.1f}%">{escape(text)}</span>'
            for number, y in axis.places.items():
                ways.setdefault(number, []).append(place(x, y))
        marks = self._marks({number: self._mark(number, "line", places) for number, places in ways.items()})
        svg = f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img">{lines}{marks}</svg>'
        unit = "a line is a trial, the better the stronger; point at one to find it everywhere"
        return figure("Parameters and objective", f'<div class="parallel">{svg}{texts}</div>', unit)


class _Axis:
    """The position of each trial on the axis of a parameter or an objective, from 0 to 1.

    Args:
        name: of the parameter, or of the objective.
        trials: of the study.
        values: of the objective in each trial; by default those of the parameter.
    """

    def __init__(self, name: str, trials: Sequence[Any], values: Points | None = None) -> None:
        self.name, self.unit = name, ""
        found = {trial.number: trial.params[name] for trial in trials if name in trial.params}
        declared = [trial.distributions[name] for trial in trials if name in trial.distributions]
        if values is not None:
            found, declared = values, []
        if declared and hasattr(declared[0], "choices"):
            choices = list(dict.fromkeys(choice for one in declared for choice in one.choices))
            middles = {choice: (index + 0.5) / len(choices) for index, choice in enumerate(choices)}
            self.places = {number: middles[value] for number, value in found.items()}
            self.labels = [(at, short(c) if isinstance(c, float) else str(c)) for c, at in middles.items()]
            return
        finite = [value for value in found.values() if math.isfinite(value)] or [0.0]
        scale = fitting(finite)
        if declared and declared[0].log:
            self.unit, scale = "logarithmic", Scale(min(finite) / 1.2, max(finite) * 1.2, is_logarithmic=True)
        self.places = {number: scale.place(value) for number, value in found.items()}
        self.labels = scale.labels


def _grid(axis: _Axis | Scale) -> str:
    return "".join(f'<path class="grid" d="M{place(0, at)}h1000"/>' for at, _ in axis.labels)
