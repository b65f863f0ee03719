"""Select the version of transformers to follow, with a switch for each difference in behaviour."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, fields

VARIABLE = "LIGHTRAINER_FOLLOW"
DOCUMENTED = "5.3.0"
"""Version whose documentation this package implements. It is the default version to follow."""


def _since(version: str) -> bool:
    return field(default=False, metadata={"since": version})


@dataclass(frozen=True, kw_only=True)
class VersionBehavior:
    """Behaviour of one version of `transformers` that affects results.

    Additions of later versions that do not change results (arguments, methods, schedules), and
    fixes, are always available; see docs/develop/followed.md.
    """

    version: str
    """Version of `transformers`."""
    counts_shifted_labels: bool = _since("5.10.1")
    """The items of a step are the labels that a causal loss compares: all but the first of each
    row, or those of `shift_labels` where a batch has them.
    """
    evaluates_last_step: bool = _since("5.4.0")
    """With `eval_strategy="steps"` there is an evaluation after the last step too, before the
    last checkpoint.
    """
    hides_accumulation: bool = _since("5.5.4")
    """`accelerator.gradient_accumulation_steps` is 1 in a Trainer, which divides losses itself."""
    fsdp_options_mean_version_2: bool = _since("5.10.1")
    """`fsdp="full_shard"` and other words mean version 2 of FSDP, layer by layer, where
    `fsdp_config` says nothing of it, as `fsdp=True` does under every version; before, version 1 and
    the model as one.
    """
    smooths_by_items: bool = _since("5.15.0")
    """Label smoothing divides by the items of the step, which are counted as for the model's own
    loss; before, by the labels of each batch that count.
    """
    seeds_evaluation_in_groups: bool = _since("5.16.0")
    """With `train_sampling_strategy="group_by_length"` an evaluation draws from a separate
    generator, so that it does not change the training.
    """
    forgets_missing_best: bool = _since("5.17.0")
    """A best checkpoint that is missing when a training resumes is forgotten."""
    keeps_single_end_token: bool = _since("5.18.0")
    """The one end token of a generation config stays a number; before, a training with a tokenizer
    puts it into a list.
    """
    keeps_nan_out_of_eval_loss: bool = _since("5.23.0")
    """`logging_nan_inf_filter` leaves batches whose loss is not finite out of `eval_loss`."""
    counts_items_in_floats: bool = _since("5.23.0")
    """`num_items_in_batch` is a tensor of float32, which a loss in half precision becomes when
    divided by it.
    """

    @classmethod
    @functools.lru_cache(maxsize=8)  # called in steps
    def at(cls, version: str) -> VersionBehavior:
        """Return the behaviour of a version.

        Args:
            version: the version of `transformers`, such as `5.23.0` or `5.23`.

        Raises:
            ValueError: it is not a version number.
        """
        from packaging.version import Version

        release = Version(Version(version).base_version)
        switches: dict[str, bool] = {}
        for switch in fields(cls):
            if switch.metadata:
                first_release = Version(switch.metadata["since"])
                switches[switch.name] = release >= first_release
        return cls(version=version, **switches)


_served: str | None = None


def serve(version: str | None) -> None:
    """Set the version that scripts see as transformers; None for none."""
    global _served
    _served = version


def version_behavior() -> VersionBehavior:
    """Return the behaviour to follow.

    This is the version in `LIGHTRAINER_FOLLOW`, otherwise the version served, otherwise 5.3.0.

    Raises:
        ValueError: the variable is not a version number.
    """
    requested = os.environ.get(VARIABLE)
    try:
        return VersionBehavior.at(requested or _served or DOCUMENTED)
    except ValueError:
        raise ValueError(
            f"{VARIABLE}={requested!r} is not a version of transformers, such as 5.3.0 or 5.23. "
            "Correct or unset the variable."
        ) from None
