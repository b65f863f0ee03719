"""DeepSpeed, through Lightning's `DeepSpeedStrategy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ..arguments.deepspeed_config import fill_from_arguments, fill_from_run, load_deepspeed, open_keys, value_at
from .base import StrategyPlan, has_package, picked, process_group

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

INSTALL = "pip install deepspeed"


@dataclass(frozen=True, kw_only=True)
class DeepSpeedPlan(StrategyPlan):
    """DeepSpeed's own configuration, filled in from the arguments, is its option `config`."""

    @property
    def stage(self) -> int:
        """The stage of ZeRO."""
        return value_at(self.options["config"], "zero_optimization.stage", 0)

    @property
    def shards_weights(self) -> bool:
        """In stage 3."""
        return self.stage == 3

    @property
    def open_keys(self) -> list[str]:
        """What is still "auto": it follows from the model, or from the number of steps."""
        return open_keys(self.options["config"])

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """Refuse: see `StrategyPlan.check`."""
        require_deepspeed()
        raise NotImplementedError(
            "deepspeed can be planned, but not run yet: shard the model with fsdp='full_shard auto_wrap' and "
            "fsdp_config={'version': 2} instead."
        )

    def build(self) -> Any:
        """A `DeepSpeedStrategy`.

        Raises:
            ImportError: there is no deepspeed.
            ValueError: something is "auto" still.
        """
        require_deepspeed()
        if self.open_keys:
            raise ValueError(
                f"deepspeed: nothing says what these are: {', '.join(self.open_keys)}. They follow from the "
                'hidden_size of the model\'s config and from the number of steps. Write numbers in place of "auto".'
            )
        from lightning.pytorch.strategies import DeepSpeedStrategy

        return DeepSpeedStrategy(**{**self.options, "config": self.lightning_config()})

    def lightning_config(self) -> dict[str, Any]:
        """The configuration without what Lightning sets itself: one of its batches is one optimizer step."""
        left_out = ("gradient_accumulation_steps", "train_batch_size")
        config = {key: value for key, value in self.options["config"].items() if key not in left_out}
        config.setdefault("steps_per_print", 2**63 - 1)  # it would print to the screen
        return config

    def groups(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """The configuration, one row a section."""
        config: Mapping[str, Any] = self.options["config"]
        sections = {key: value for key, value in config.items() if isinstance(value, Mapping)}
        plain = {key: value for key, value in config.items() if key not in sections}
        return [
            ("deepspeed", "Trainer(strategy=)", {"stage": self.stage}),
            ("deepspeed", "config", plain),
            *(("deepspeed", f"config: {key}", value) for key, value in sections.items()),
            ("ddp_backend, ddp_timeout", "DeepSpeedStrategy: group", picked(self.options, *_GROUP)),
        ]


_GROUP = ("process_group_backend", "timeout")


def deepspeed(args: TrainingArguments, model: nn.Module | None, steps: int | None) -> DeepSpeedPlan:
    """The plan of `deepspeed`.

    Args:
        args: the training arguments.
        model: tells its hidden size.
        steps: optimizer steps of the training; None where only `max_steps` may tell.

    Raises:
        ValueError: the configuration contradicts what is known by now.
    """
    config = load_deepspeed(args.deepspeed)
    mismatches = fill_from_arguments(config, args, args.world_size)
    mismatches += fill_from_run(config, args, model, args.max_steps if steps is None and args.max_steps > 0 else steps)
    if mismatches:
        raise ValueError(
            f'deepspeed contradicts the arguments: {"; ".join(mismatches)}. Write "auto" in the configuration, or '
            "change one."
        )
    if "optimizer" not in config:
        config["zero_allow_untested_optimizer"] = True  # the optimizer is the Trainer's
    return DeepSpeedPlan(name="DeepSpeedStrategy", options={"config": config, **process_group(args)})


def require_deepspeed() -> None:
    """Say how to install DeepSpeed where it is not.

    Raises:
        ImportError: it is not there.
    """
    if not has_package("deepspeed"):
        raise ImportError(f"The argument deepspeed needs the package deepspeed, which is not installed: {INSTALL}")
