"""DeepSpeed, through Lightning's `DeepSpeedStrategy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ...lightning_modules.common.seeding import host_rng_untouched
from ...lightning_modules.common.suggestions import OptimizerNames
from ...lightning_modules.distributed.deepspeed_engine import is_engine
from ..arguments.deepspeed_config import (
    GATHER,
    fill_from_arguments,
    fill_from_run,
    load_deepspeed,
    open_keys,
    value_at,
)
from ..arguments.packages import require_deepspeed
from .base import StrategyPlan, picked, process_group

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


@dataclass(frozen=True, kw_only=True)
class DeepSpeedPlan(StrategyPlan):
    """DeepSpeed's own configuration, filled in from the arguments, is its option `config`."""

    device: str = "cpu"
    """Type of the device."""

    @property
    def stage(self) -> int:
        """The stage of ZeRO."""
        return value_at(self.options["config"], "zero_optimization.stage", 0)

    @property
    def shards_weights(self) -> bool:
        """In stage 3."""
        return self.stage == 3

    @property
    def distributes(self) -> bool:
        """Always: an engine is put around the model."""
        return True

    @property
    def replaces_parameters(self) -> bool:
        """No: their values go elsewhere, and a training makes its optimizer anew."""
        return False

    @property
    def gathers_on_save(self) -> bool:
        """Whether a saved model has whole weights; in stage 3 the configuration can say no."""
        return self.stage != 3 or value_at(self.options["config"], GATHER, True) is not False

    @property
    def open_keys(self) -> list[str]:
        """What is still "auto": it follows from the model, or from the number of steps."""
        return open_keys(self.options["config"])

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """See `StrategyPlan.check`."""
        require_deepspeed()
        half = value_at(self.options["config"], "fp16.enabled") is True or args.mixed_precision == "fp16"
        if half and self.device == "cpu":
            raise ValueError(
                "deepspeed with fp16 needs a GPU: DeepSpeed has no float16 on the CPU. Pass bf16=True in place of "
                "fp16=True, or neither."
            )
        if OptimizerNames(args.optim) in _ALL_AT_ONCE and "optimizer" not in self.options["config"]:
            raise ValueError(
                f"optim={OptimizerNames(args.optim).value!r} does not go with deepspeed, which gives an optimizer flat "
                "parts of all parameters in place of the parameters. Choose one such as 'adamw_torch'."
            )

    def build(self) -> Any:
        """A `DeepSpeedStrategy`, whose engine is around the model, not the LightningModule.

        Raises:
            ImportError: there is no deepspeed.
            ValueError: something is "auto" still.
        """
        require_deepspeed()
        with host_rng_untouched():  # imports draw from generators
            from ...lightning_modules.distributed.deepspeed_engine import choose_accelerator
            from ...lightning_modules.distributed.deepspeed_strategy import ModelDeepSpeedStrategy

            choose_accelerator(self.device)
            return ModelDeepSpeedStrategy(**{**self.options, "config": self.engine_config()})

    def distribute(self, model: nn.Module, module: Any) -> nn.Module:
        """For a training nothing yet: its engine is made with the optimizer. See `StrategyPlan.distribute`."""
        strategy = module.trainer.strategy
        if module.trainer.training:
            return model
        if is_engine(model):
            return strategy.take_up(model)
        return strategy.shard(model) if self.stage == 3 else model.to(strategy.root_device)

    def precision(self, name: str, device: str) -> Any:
        """DeepSpeed casts and scales by itself."""
        from ...lightning_modules.distributed.deepspeed_strategy import EnginePrecision

        return EnginePrecision(name, device)

    def require_filled(self) -> None:
        """Look whether a training can begin.

        Raises:
            ValueError: something is "auto" still.
        """
        if self.open_keys:
            raise ValueError(
                f"deepspeed: nothing says what these are: {', '.join(self.open_keys)}. They follow from the "
                'hidden_size of the model\'s config and from the number of steps. Write numbers in place of "auto".'
            )

    def engine_config(self) -> dict[str, Any]:
        """The configuration as the engine gets it."""
        config = _without_open(self.options["config"])  # an evaluation does not need them
        config.setdefault("steps_per_print", 2**63 - 1)  # it would print to the screen
        halves = (value_at(config, f"{name}.enabled") is True for name in ("bf16", "fp16"))
        if self.stage == 0 and not any(halves):
            config["gradient_clipping"] = 0.0  # then the gradients are whole: they are clipped as without DeepSpeed
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


def _without_open(config: Mapping[str, Any]) -> dict[str, Any]:
    closed = {key: value for key, value in config.items() if value != "auto"}
    return {key: _without_open(value) if isinstance(value, Mapping) else value for key, value in closed.items()}


_GROUP = ("process_group_backend", "timeout")
_NAMES = ("schedule_free", "lomo", "galore", "apollo")
_ALL_AT_ONCE = [name for name in OptimizerNames if any(part in name.value for part in _NAMES)]
"""Optimizers that look at the shapes of parameters, or change them at other times than in a step."""


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
    _add_what_is_missing(config, args)
    return DeepSpeedPlan(
        name="DeepSpeedStrategy", device=args.device.type, options={"config": config, **process_group(args)}
    )


def _add_what_is_missing(config: dict[str, Any], args: TrainingArguments) -> None:
    """What the arguments say holds also where the configuration is silent; further what the device asks for."""
    config.setdefault("train_micro_batch_size_per_gpu", args.per_device_train_batch_size)
    config.setdefault("gradient_accumulation_steps", args.gradient_accumulation_steps)
    config.setdefault("gradient_clipping", args.max_grad_norm)
    if args.mixed_precision != "no":
        config.setdefault(args.mixed_precision, {"enabled": True})
    if "optimizer" not in config:
        config["zero_allow_untested_optimizer"] = True  # the optimizer is the Trainer's
        config.setdefault("zero_force_ds_cpu_optimizer", False)  # torch's works on both devices, and is compiled
        return
    adam = str(config["optimizer"].get("type", "")).lower() in ("adam", "adamw")
    if adam and args.device.type == "cpu":
        config["optimizer"].setdefault("params", {}).setdefault("torch_adam", True)  # else it would be compiled now
