"""What a trial is judged by: numbers that are made of the metrics of an evaluation."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean
from ..evaluation.best_metric import MissingMetricError
from .hyperparameters import default_compute_objective

logger = logging.getLogger(__name__)

Compute = Callable[[dict[str, float]], Any]

_LESS = """
    bpc brier cer crps distance eer error errors fid fpr hinge mae mape mase mer mse msle nll perplexity ppl rmse rmsle
    runtime ter wer
"""
_MORE = """
    acc accuracies accuracy auc auprc auroc bertscore bleu chrf chrf++ comet correlation dice f1 f2 iou jaccard kappa
    map match matthews mcc meteor mrr ndcg pearson pearsonr precision psnr r2 recall roc rouge rouge1 rouge2 rougel
    rougelsum sacrebleu sensitivity spearman spearmanr specificity ssim
"""
"""Words of the names of metrics of which more is better, whatever the task; of those above less is."""


def objective_from(compute: Compute | str | Sequence[str] | None) -> Compute:
    """The function that `compute_objective` stands for: itself, or a look-up of metrics by name.

    Args:
        compute: a function of the metrics, the name of a metric, a list of names for several objectives, or None for
            `default_compute_objective`.

    Raises:
        TypeError: it is none of these.
    """
    if compute is None:
        return default_compute_objective
    if callable(compute):
        return compute
    if isinstance(compute, str):
        return lambda metrics: look_up(metrics, compute)
    if isinstance(compute, (list, tuple)) and compute and all(isinstance(name, str) for name in compute):
        return lambda metrics: [look_up(metrics, name) for name in compute]
    raise TypeError(
        f"compute_objective must be a function of the metrics, or the name of one, but is {type(compute).__name__} "
        f"({compute!r:.60})."
    )


def metric_names(compute: Any) -> list[str]:
    """The names of the metrics that `compute_objective` stands for; none where it is a function, or the default."""
    if isinstance(compute, str):
        return [compute]
    return list(compute) if isinstance(compute, (list, tuple)) else []


def known_direction(name: str) -> str | None:
    """Whether a metric is to be minimized or maximized, from the words of its name; None where they do not say it.

    A loss is minimized, as with `greater_is_better`; other than there, so are error rates, perplexities and the like.
    """
    words = re.split(r"[^a-z0-9+]+", name.lower())
    if words[-1].endswith("loss"):
        return "minimize"
    said = {"minimize"} if set(_LESS.split()).intersection(words) else set()
    said |= {"maximize"} if set(_MORE.split()).intersection(words) else set()
    return said.pop() if len(said) == 1 else None


def directions_of(names: Sequence[str], option: str, metric: str) -> list[str]:
    """The direction of each metric where the user says none.

    Args:
        names: of the metrics.
        option: how the user would say a direction, for the error.
        metric: how the user has said the metrics, for the error.

    Raises:
        ValueError: that of one is not known.
    """
    found = [known_direction(name) for name in names]
    unknown = [name for name, direction in zip(names, found, strict=True) if direction is None]
    if unknown:
        way = "{} {}" if option.startswith("-") else "{}={!r}"
        ways = " or ".join(way.format(option, word) for word in ("minimize", "maximize"))
        each = f", one for each of the {len(names)} metrics" if len(names) > 1 else ""
        raise ValueError(
            f"{metric} {unknown[0]!r}: whether less or more of it is better is not known. Pass {ways}{each}."
        )
    return [direction for direction in found if direction is not None]


def look_up(metrics: Mapping[str, float], name: str) -> float:
    """A metric by its name, with or without `eval_`.

    Raises:
        MissingMetricError: there is none; names those that there are.
    """
    for known in (name, f"eval_{name}"):
        if known in metrics:
            return metrics[known]
    raise _missing(name, metrics)


def judged(compute: Compute, metrics: Mapping[str, float], objectives: int) -> float | list[float]:
    """The value of an evaluation for the study.

    Args:
        compute: see `Trainer.hyperparameter_search`.
        metrics: of the evaluation.
        objectives: how many directions the study has.

    Returns:
        One number, or a list of them where there are several objectives; NaN is left to the caller.

    Raises:
        MissingMetricError: a metric is used that does not exist.
        ValueError: there is no number, or not as many as there are directions.
    """
    try:
        found = compute(dict(metrics))
    except KeyError as error:
        if isinstance(error, MissingMetricError):
            raise
        raise _missing(str(error.args[0]) if error.args else "", metrics) from error
    several = isinstance(found, (list, tuple))
    numbers = [_number(one, metrics) for one in (found if several else [found])]
    if len(numbers) != objectives:
        raise ValueError(
            f"compute_objective gives {len(numbers)} value{'s' if len(numbers) != 1 else ''}, but direction has "
            f"{objectives}. For several objectives, return a list of them, and pass a direction for each: "
            "direction=['minimize', 'maximize']."
        )
    return numbers if several and objectives > 1 else numbers[0]


def place_of(state: Any, step: int, unit: str) -> int | None:
    """What an evaluation is reported under: the step, or the epochs that are completed; None before the first is.

    Args:
        state: of the training.
        step: optimizer steps done.
        unit: `steps` or `epochs`.
    """
    if unit == "steps":
        return step
    return math.floor((state.epoch or 0.0) + 1e-6) or None


def warn_of_nan(value: float | list[float], number: int, metrics: Mapping[str, float]) -> None:
    """Say that a trial fails for its value; the search goes on, as others may do better."""
    numbers = value if isinstance(value, list) else [value]
    if any(math.isnan(one) for one in numbers):
        logger.warning(
            "Trial %s fails: its objective is %s, which nothing can be compared with. The metrics are: %s.",
            number,
            value,
            _listed(metrics),
        )


def _number(value: Any, metrics: Mapping[str, float]) -> float:
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1, ()) else value
    if isinstance(value, (int, float)):
        return value
    tell = "None" if value is None else f"{type(value).__name__} ({value!r:.60})"
    raise ValueError(
        f"compute_objective returned {tell}. It has to return a number, made of the metrics of an evaluation: "
        f"{_listed(metrics)}."
    )


def _missing(name: str, metrics: Mapping[str, float]) -> MissingMetricError:
    return MissingMetricError(
        f"The objective uses the metric {name!r}, which the evaluation does not have."
        f"{did_you_mean(name, metrics)} It has: {', '.join(metrics) or 'none'}."
    )


def _listed(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.6g}" if isinstance(value, float) else name for name, value in metrics.items())
