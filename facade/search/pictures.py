"""Optuna's own plots of a study: as PNG, and to move about in."""

from __future__ import annotations

import io
import logging
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

logger = logging.getLogger(__name__)

_FUNCTIONS = {
    "history": "plot_optimization_history",
    "importances": "plot_param_importances",
    "slices": "plot_slice",
}
"""Those that show one objective, be it one of several."""
_MOST_FOR_A_FRONT = 3


@dataclass(frozen=True)
class Plot:
    """One picture of a study."""

    name: str
    """Of its file, without the ending."""
    function: str
    """Which of optuna's functions draws it."""
    options: dict[str, Any] = field(default_factory=dict)
    """What that is called with, beside the study."""

    def png(self, study: Any) -> bytes | str:
        """The picture, or why there is none."""
        try:
            from optuna.visualization import matplotlib as plots
        except ImportError:
            return "it needs matplotlib: pip install matplotlib"
        try:
            return _saved(getattr(plots, self.function), study, self.options)
        except ImportError as error:
            return f"it needs a package that is not installed ({error})"
        except Exception as error:  # too few trials, each plot says so in its own way
            return str(error).partition("\n")[0] or type(error).__name__


def plots_of(study: Any) -> list[Plot]:
    """The pictures that a study can have: those of each objective, and what trials of several objectives trade off."""
    if not any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False)):
        return []  # optuna would draw empty axes
    count = len(study.directions)
    if count == 1:
        single = [Plot(name, function) for name, function in _FUNCTIONS.items()]
        return [*single, Plot("intermediate_values", "plot_intermediate_values")]
    front = [Plot("pareto_front", "plot_pareto_front")] if count <= _MOST_FOR_A_FRONT else []
    return front + [
        Plot(f"{name}_{index}", function, _objective(index))
        for index in range(count)
        for name, function in _FUNCTIONS.items()
    ]


def _objective(index: int) -> dict[str, Any]:
    return {"target": lambda trial: trial.values[index], "target_name": f"Objective {index}"}


def interactive(study: Any) -> str | None:
    """A page with all of them by plotly, which needs no network; None without plotly, or with nothing to draw."""
    try:
        import_module("plotly")
        from optuna import visualization
    except ImportError:
        return None
    parts: list[str] = []
    for plot in plots_of(study):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                figure = getattr(visualization, plot.function)(study, **plot.options)
            except Exception as error:
                logger.info("No %s: %s", plot.name, error)
                continue
        parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))  # the library once
    return "<!doctype html><meta charset='utf-8'>" + "\n".join(parts) if parts else None


def _saved(draw: Any, study: Any, options: dict[str, Any]) -> bytes:
    from matplotlib import pyplot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these functions call themselves experimental, and complain about the layout
        axes = draw(study, **options)
        figure = axes.figure if hasattr(axes, "figure") else axes.flat[0].figure
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return data.getvalue()
