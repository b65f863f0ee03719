"""The command `lr-find`: run a script for some steps with a growing learning rate, and suggest
one.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import itertools
import json
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

from .changed_run import add_script, run_changed, write_result
from .command_line import CommandParser, positive, whole

_DESCRIPTION = """\
Run a script for some steps in which the learning rate grows from the smallest to the largest, each
step by the same factor, and show the loss over it. The suggestion is where the smoothed loss falls
fastest, as with Lightning's learning rate finder, but only where it falls by more than its scatter
between batches. It ends early where the loss is four times the smallest. Nothing of yours is
written: output_dir is a scratch folder, and nothing is saved, evaluated, uploaded or tracked.
"""
_ARGUMENTS = {
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "eval_strategy": "no",
    "eval_on_start": False,
    "lr_scheduler_type": "constant",
    "lr_scheduler_kwargs": None,
}
_WIDTH = 64
_HEIGHT = 12
"""Characters of the picture."""
_SKIPPED = 5
"""Steps at the beginning whose means are of too few losses."""
_KEPT = 0.8
"""Share of the mean of the step before in an exponential mean."""
_DEVIATIONS_OF_MEDIAN = 1.4826
"""The standard deviation of a normal distribution, in medians of its absolute values."""


def lr_find(words: Sequence[str]) -> int:
    """Print a picture of the loss over the learning rate, and a suggestion.

    Args:
        words: options, the script, and its arguments.

    Returns:
        The exit status: 0, 1 if the script fails or the loss never falls by more than its scatter,
        2 for a wrong command line.
    """
    usage = "lightrainer lr-find [options] SCRIPT [ARGUMENTS]"
    parser = CommandParser(
        "lr-find", _DESCRIPTION, "Example: lightrainer lr-find train.py --output_dir out", usage
    )
    parser.add_argument(
        "--min", type=positive, default=1e-8, metavar="RATE", help="the first one (1e-8)"
    )
    parser.add_argument(
        "--max", type=positive, default=1.0, metavar="RATE", help="the last one (1)"
    )
    parser.add_argument(
        "--steps", type=whole(20), default=100, help="optimizer steps between them (100)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in the place of a picture")
    add_script(parser)
    given = parser.parse_args(words)
    if not os.path.isfile(given.script):
        parser.error(f"{given.script}: there is no such script.")
    if given.min >= given.max:
        parser.error(f"--min {given.min:g} has to be below --max {given.max:g}.")

    # Train.
    growth = given.max / given.min
    rates = [given.min * growth ** (step / (given.steps - 1)) for step in range(given.steps)]
    result = run_changed("lr-find", given, {**_ARGUMENTS, "max_steps": given.steps}, rates=rates)
    if result is None:
        return 1

    # Choose a rate.
    losses = smoothed(result["losses"])
    best = suggestion(losses, scatter(result["losses"]))
    chosen = None
    if best is not None:
        chosen = rates[best]

    # Print.
    if given.json:
        print(
            json.dumps(
                {"suggestion": chosen, "rates": rates[: len(losses)], "losses": result["losses"]}
            )
        )
    else:
        _print_picture(losses, rates, chosen)
    return int(chosen is None)


def _print_picture(losses: Sequence[float], rates: Sequence[float], chosen: float | None) -> None:
    last_rate = rates[max(len(losses), 1) - 1]
    for line in picture(losses or [0.0]):
        print(line)
    print(f"{rates[0]:<.1e}{last_rate:>{_WIDTH + 2}.1e}  learning rate")

    if chosen is None:
        print(
            "No suggestion: the loss never falls by more than its scatter. Choose other rates, or "
            "larger batches."
        )
    else:
        print(f"suggestion: {chosen:.2e}")


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return exponential means, corrected for their beginning, up to four times the smallest or
    what is not finite.
    """
    means: list[float] = []
    sum_of_weighted = 0.0
    smallest = math.inf
    for step, loss in enumerate(losses):
        sum_of_weighted = _KEPT * sum_of_weighted + (1 - _KEPT) * loss
        mean = sum_of_weighted / (1 - _KEPT ** (step + 1))

        # NaN is not at most anything.
        has_grown = not mean <= 4 * smallest
        if has_grown and (step >= _SKIPPED or not math.isfinite(mean)):
            return means

        means.append(mean)
        smallest = min(smallest, mean)
    return means


def scatter(losses: Sequence[float]) -> float:
    """Return the standard deviation that smoothed losses have because batches differ, from the
    losses of all steps.

    It follows from the median of the changes from step to step, to which few steps of a fast fall
    matter little.
    """
    changes = [after - before for before, after in itertools.pairwise(losses)]
    sizes = [abs(change) for change in changes if math.isfinite(change)]
    if not sizes:
        return 0.0

    # a change has two losses
    deviation = _DEVIATIONS_OF_MEDIAN * statistics.median(sizes) / math.sqrt(2)
    return deviation * math.sqrt((1 - _KEPT) / (1 + _KEPT))


def suggestion(losses: Sequence[float], scatter: float = 0.0) -> int | None:
    """Return the step at which the loss falls fastest; None where it never falls by more than its
    scatter.

    Args:
        losses: smoothed.
        scatter: their standard deviation where the rate changes nothing. Around the step, over
            about a tenth of all steps, they have to fall by four standard deviations of a
            difference.
    """
    least = 4 * math.sqrt(2) * scatter
    reach = max(_SKIPPED, len(losses) // 20)
    falls: dict[int, float] = {}
    for step in range(_SKIPPED, len(losses) - 1):
        before = losses[max(step - reach, _SKIPPED - 1)]
        after = losses[min(step + reach, len(losses) - 1)]
        change = losses[step + 1] - losses[step - 1]
        if change < 0 and before - after > least:
            falls[step] = change
    return min(falls, key=falls.__getitem__, default=None)


def picture(losses: Sequence[float]) -> list[str]:
    """Return lines of text with the losses from left to right, the largest above."""
    low = min(losses)
    high = max(losses)
    span = (high - low) or 1

    # The row of each column's loss.
    columns = [losses[column * len(losses) // _WIDTH] for column in range(_WIDTH)]
    rows = [round((high - loss) / span * (_HEIGHT - 1)) for loss in columns]

    labels = {0: f"{high:.4g}", _HEIGHT - 1: f"{low:.4g}"}
    lines = []
    for level in range(_HEIGHT):
        points = ["*" if row == level else " " for row in rows]
        line = "".join(points).rstrip()
        lines.append(f"{labels.get(level, ''):>9} |{line}")
    return lines


def change(trainer_class: Any, settings: dict[str, Any]) -> None:
    """Let a class of Trainers train with the rates of the settings, write down the losses, and
    end the script.
    """
    from ..callbacks import TrainerCallback

    rates = settings["rates"]
    losses: list[float] = []
    original = trainer_class.train

    class Growing(TrainerCallback):
        def on_pre_optimizer_step(
            self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
        ):
            rate = rates[state.global_step]
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("initial_lr", 1.0) / (args.learning_rate or 1.0)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any):
            if "loss" in logs:
                losses.append(float(logs["loss"]))
                control.should_training_stop |= len(smoothed(losses)) < len(losses)

    def train(trainer: Any, *args: Any, **kwargs: Any):
        trainer.add_callback(Growing())
        original(trainer)
        write_result(trainer, settings, {"losses": losses})
        raise SystemExit(0)

    def rate_in_use(trainer: Any) -> float:
        """Return the rate of the step, for the logs; the schedule of the script knows nothing of
        it.
        """
        return trainer.optimizer.param_groups[0]["lr"]

    trainer_class.train = train
    trainer_class._get_learning_rate = rate_in_use
