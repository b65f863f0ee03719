"""The command `lr-find`: run a script with an increasing learning rate, and suggest a rate."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import itertools
import json
import math
import statistics
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .changed_run import read_options, run_changed, write_result
from .command_line import CommandParser, integer, positive, table

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..callbacks import TrainerControl, TrainerState
    from ..facade import Trainer, TrainingArguments

_DESCRIPTION = """\
Run a script for some steps while the learning rate grows from --min to --max, by the same factor in
each step, and list the smoothed loss over the rate. The suggested rate is where it falls fastest,
as in Lightning's learning rate finder, but only if it falls by more than it varies between batches.
The run ends early when the loss explodes. Your files are not changed:
output_dir is a scratch folder, and nothing is saved, evaluated, uploaded or tracked.
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
"""Training arguments that replace those of the script."""
_PRINTED_STEPS = 20
"""Approximate number of steps in the table."""
_SKIPPED_STEPS = 5
"""Number of steps skipped at the start, whose means cover too few losses."""
_DECAY = 0.8
"""Weight of the previous mean in the exponential moving average."""
_MAX_GROWTH = 4
"""Ratio to the smallest loss above which the loss counts as exploded; see `_explosion_limit`."""
_DEVIATION_OF_MEDIAN = 1.4826
"""Ratio of a centered normal distribution's standard deviation to its median absolute value."""


def lr_find(words: Sequence[str]) -> int:
    """Print the loss for increasing learning rates, and a suggested rate.

    Args:
        words: options, the script, and arguments for it.

    Returns:
        The exit status: 0 for success, 1 if the script fails or the loss never falls by more than
        it varies. An invalid command line exits with status 2.
    """
    options = _read_options(words)

    # Train with rates that increase by the same factor in each step.
    growth = options.max / options.min
    rates = []
    for step in range(options.steps):
        rates.append(options.min * growth ** (step / (options.steps - 1)))
    arguments = {**_ARGUMENTS, "max_steps": options.steps}
    result, status = run_changed("lr-find", options, arguments, rates=rates)
    if result is None:
        return status

    # Choose the rate at which the loss falls fastest.
    losses = smooth(result["losses"])
    step = steepest_step(losses, variation(result["losses"]))
    suggestion = None if step is None else rates[step]

    # Print the losses and the suggestion.
    if options.json:
        _print_json(result["losses"], rates, suggestion)
    else:
        _print_table(losses, rates, suggestion)
    return 1 if suggestion is None else status


def _read_options(words: Sequence[str]) -> Namespace:
    """Parse the command line; errors exit with status 2."""
    parser = CommandParser(
        "lr-find",
        _DESCRIPTION,
        "Example: lightrainer lr-find train.py --output_dir out",
        "lightrainer lr-find [options] SCRIPT [ARGUMENTS]",
    )
    parser.add_argument(
        "--min", type=positive, default=1e-8, metavar="RATE", help="the first rate (1e-8)"
    )
    parser.add_argument(
        "--max", type=positive, default=1.0, metavar="RATE", help="the last rate (1)"
    )
    parser.add_argument(
        "--steps", type=integer(20), default=100, help="number of optimizer steps (100)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with the loss of each step"
    )

    options = read_options(parser, words)
    if options.min >= options.max:
        parser.error(f"--min {options.min:g} has to be below --max {options.max:g}.")
    return options


def _print_json(losses: Sequence[float], rates: Sequence[float], suggestion: float | None) -> None:
    """Print the loss of each step, its rate, and the suggested rate; null if not finite."""
    # JSON has no NaN and no infinity.
    finite_losses = [loss if math.isfinite(loss) else None for loss in losses]
    content = {
        "suggestion": suggestion,
        "rates": rates[: len(losses)],
        "losses": finite_losses,
    }
    print(json.dumps(content))


def _print_table(losses: Sequence[float], rates: Sequence[float], suggestion: float | None) -> None:
    """Print smoothed losses for some of the rates, and the suggested rate."""
    rows = [("rate", "loss")]
    for step in range(0, len(losses), max(len(losses) // _PRINTED_STEPS, 1)):
        rows.append((f"{rates[step]:.1e}", f"{losses[step]:.4g}"))
    print("\n".join(table(rows, left_aligned=0)))

    if suggestion is None:
        print(
            "No suggestion: the loss never falls by more than it varies between batches. Try other "
            "rates, or larger batches."
        )
    else:
        print(f"suggestion: {suggestion:.2e}")


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the exponential moving average of losses, bias-corrected, until the loss explodes.

    Args:
        losses: the loss of each step.

    Returns:
        the mean at each step. The list ends before the first mean that is not finite, or is above
        `_explosion_limit`.
    """
    means: list[float] = []
    weighted_sum = 0.0
    smallest = math.inf
    largest = -math.inf
    for step, loss in enumerate(losses):
        weighted_sum = _DECAY * weighted_sum + (1 - _DECAY) * loss
        mean = weighted_sum / (1 - _DECAY ** (step + 1))

        if not math.isfinite(mean):
            return means
        if step >= _SKIPPED_STEPS and mean > _explosion_limit(smallest, largest):
            return means
        means.append(mean)
        smallest = min(smallest, mean)
        largest = max(largest, mean)
    return means


def _explosion_limit(smallest: float, largest: float) -> float:
    """Return the mean loss above which the loss counts as exploded.

    This is four times the smallest mean. A loss that can be negative has no such ratio: it explodes
    if it rises by more than four times the range of its means.
    """
    if smallest > 0:
        return _MAX_GROWTH * smallest
    return smallest + _MAX_GROWTH * (largest - smallest)


def variation(losses: Sequence[float]) -> float:
    """Return the standard deviation of smoothed losses that is caused by differences of batches.

    It is computed from the median change between successive steps, on which a few steps with a fast
    fall of the loss have little influence.

    Args:
        losses: the loss of each step, not smoothed.
    """
    changes = []
    for previous, current in itertools.pairwise(losses):
        change = abs(current - previous)
        if math.isfinite(change):
            changes.append(change)
    if not changes:
        return 0.0

    # A change is the difference of two losses, so its variance is twice that of a loss.
    deviation = _DEVIATION_OF_MEDIAN * statistics.median(changes) / math.sqrt(2)
    # Multiply with the ratio for an exponential moving average of independent values.
    return deviation * math.sqrt((1 - _DECAY) / (1 + _DECAY))


def steepest_step(losses: Sequence[float], variation: float = 0.0) -> int | None:
    """Return the step at which the loss falls fastest; None if it never falls significantly.

    Args:
        losses: the smoothed loss of each step.
        variation: their standard deviation at a constant rate. A fall is significant if the losses
            around the step, over about a tenth of all steps, fall by more than four standard
            deviations of a difference.
    """
    # The slope is measured between the two neighbors of a step, but counts only if the fall over a
    # wider window is significant.
    smallest_fall = 4 * math.sqrt(2) * variation
    reach = max(_SKIPPED_STEPS, len(losses) // 20)
    steepest = None
    steepest_slope = 0.0
    for step in range(_SKIPPED_STEPS, len(losses) - 1):
        before = losses[max(step - reach, _SKIPPED_STEPS - 1)]
        after = losses[min(step + reach, len(losses) - 1)]
        slope = losses[step + 1] - losses[step - 1]
        if slope < steepest_slope and before - after > smallest_fall:
            steepest = step
            steepest_slope = slope
    return steepest


def change(trainer_class: type[Trainer], settings: dict[str, Any]) -> None:
    """Make a Trainer class train with given learning rates, record the losses, and exit.

    Args:
        trainer_class: the class, changed in place.
        settings: the entry `rates` has the learning rate of each step.
    """
    from ..callbacks import TrainerCallback

    rates: list[float] = settings["rates"]
    losses: list[float] = []
    original = trainer_class.train

    class LearningRateSweep(TrainerCallback):
        """Sets the learning rate of each step, and stops the training when the loss explodes."""

        def on_pre_optimizer_step(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            optimizer: Optimizer | None = None,
            **kwargs: object,
        ) -> None:
            assert optimizer is not None
            rate = rates[state.global_step]
            base_rate = args.learning_rate or 1.0
            for group in optimizer.param_groups:
                # Keep the ratios between the rates of the parameter groups. Only a schedule of
                # torch stores the first rates.
                ratio = group.get("initial_lr", base_rate) / base_rate
                group["lr"] = rate * ratio

        def on_log(
            self,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            logs: dict[str, float] | None = None,
            **kwargs: object,
        ) -> None:
            if logs is not None and "loss" in logs:
                losses.append(float(logs["loss"]))
                if len(smooth(losses)) < len(losses):
                    control.should_training_stop = True

    def train(self: Trainer, *args: object, **kwargs: object) -> NoReturn:
        self.add_callback(LearningRateSweep())
        # Ignore the arguments that the script passes to `train`, because this run must not resume
        # from a checkpoint.
        original(self)
        write_result(self, settings, {"losses": losses})
        raise SystemExit(0)

    def current_rate(self: Trainer) -> float:
        """Return the learning rate for the logs, which usually comes from the scheduler."""
        return self.optimizer.param_groups[0]["lr"]

    trainer_class.train = train
    trainer_class._get_learning_rate = current_rate
