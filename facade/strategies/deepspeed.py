"""DeepSpeed with Lightning's `DeepSpeedStrategy`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ...lightning_modules.checkpoints import CheckpointFiles, tensor_bytes
from ...lightning_modules.checkpoints.weight_formats import has_weights
from ...lightning_modules.common.enums import optimizer_name
from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.seeding import preserved_host_rng
from ...lightning_modules.common.versions import installed, is_older
from ...lightning_modules.distributed import (
    deepspeed_engine,
    deepspeed_states,
    deepspeed_weights,
)
from ...lightning_modules.distributed.deepspeed_setup import choose_accelerator
from ...lightning_modules.distributed.zero_files import SavedStates, saved_schedule, saved_states
from ...lightning_modules.distributed.zero_states import ZeroStates
from ...lightning_modules.models.wrappers import base_of_adapter, unwrap_model
from ...lightning_modules.optim import OptimizerRequirements, optimizer_requirements
from ..arguments.deepspeed_config import (
    GATHER,
    fill_from_arguments,
    fill_from_run,
    load_deepspeed,
    open_keys,
    value_at,
)
from .strategy import PROCESS_GROUP_OPTIONS, Group, Strategy, picked, process_group

if TYPE_CHECKING:
    from typing import Self

    import lightning.pytorch as pl

    from ...lightning_modules.distributed.deepspeed_strategy import (
        EnginePrecision,
        ModelDeepSpeedStrategy,
    )
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

_LOWEST_VERSION = "0.19.5"
"""The first version that adds up gradients until the step, with offloading too."""

_NOT_RESHARDED: dict[str, Callable[[Any], bool]] = {
    "zero_optimization.offload_optimizer.device": lambda device: device == "nvme",
    "zero_optimization.offload_param.device": lambda device: device == "nvme",
    "zero_optimization.elastic_checkpoint": bool,
    "zero_optimization.mics_shard_size": lambda size: isinstance(size, int) and size > 0,
}
"""Configuration keys, with predicates for values whose states cannot be resharded, because a rank's
shards do not follow from its number or are not in memory.
"""


class DeepSpeed(Strategy):
    """Training with DeepSpeed's engine, which casts the model, synchronises gradients, and steps.

    The engine is created together with the optimizer. All ranks write its states in DeepSpeed's
    format.

    Args:
        name: see `Strategy`.
        options: see `Strategy`. `config` is the DeepSpeed configuration, completed from the
            arguments.

    Attributes:
        device: type of the device.
        processes_on_disk: number of ranks that write to the same disk: all ranks with a shared
            disk, otherwise those of a machine.
        should_log: whether this rank logs.
    """

    configures_model = True
    scales_losses = True
    can_restart = False
    optimizer_holds_parameters = False
    device = "cpu"
    processes_on_disk = 1
    should_log = True

    @classmethod
    def of(cls, args: TrainingArguments, model: nn.Module | None, steps: int | None) -> Self:
        """Return the strategy for `deepspeed`.

        Args:
            args: the training arguments.
            model: the model, for its hidden size.
            steps: number of optimizer steps of the training; None if it is not known yet.

        Raises:
            ValueError: the configuration contradicts the arguments, the model or the steps.
        """
        config = load_deepspeed(args.deepspeed or {})
        if steps is None and args.max_steps > 0:
            steps = args.max_steps

        # Fill in "auto" values, and compare all others with the arguments.
        mismatches = fill_from_arguments(config, args, args.world_size)
        mismatches += fill_from_run(config, args, model, steps)
        if mismatches:
            raise ValueError(
                f"deepspeed contradicts the arguments: {'; '.join(mismatches)}. "
                'Write "auto" in the configuration, or change one.'
            )
        _add_what_is_missing(config, args)

        strategy = cls("DeepSpeedStrategy", {"config": config, **process_group(args)})
        strategy.device = args.device.type
        strategy.should_log = args.should_log
        strategy.processes_on_disk = args.world_size
        if args.save_on_each_node:
            strategy.processes_on_disk = args.distributed_state.local_world_size
        return strategy

    @property
    def stage(self) -> int:
        """Return the ZeRO stage."""
        return value_at(self.options["config"], "zero_optimization.stage", 0)

    @property
    def shards_weights(self) -> bool:
        """See `Strategy.shards_weights`."""
        return self.stage == 3

    @property
    def open_keys(self) -> list[str]:
        """Return the keys that are still "auto", because the model or the number of steps is
        unknown.
        """
        return open_keys(self.options["config"])

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """See `Strategy.check`."""
        require_deepspeed()
        half = (
            value_at(self.options["config"], "fp16.enabled") is True
            or args.mixed_precision == "fp16"
        )
        if half and self.device == "cpu":
            raise ValueError(
                "deepspeed with fp16 needs a GPU. Pass bf16=True instead of fp16=True, or neither."
            )
        if "optimizer" not in self.options["config"]:
            optimizer = optimizer_name(args.optim)
            self.check_optimizer(args, f"optim={optimizer!r}", optimizer)

    def check_optimizer(self, args: TrainingArguments, description: str, name: str) -> None:
        """See `Strategy.check_optimizer`. Stage 0 keeps the shapes of parameters."""
        requirements = optimizer_requirements(name)
        if OptimizerRequirements.OWN_STEPS in requirements:
            raise ValueError(
                f"{description} is not supported with deepspeed. Use FSDP (fsdp=True), or another "
                "optimizer."
            )
        if self.stage != 0 and OptimizerRequirements.FULL_PARAMETERS in requirements:
            raise ValueError(
                f"{description} needs parameters in their shapes, but deepspeed flattens them. Use "
                "version 2 of FSDP (fsdp=True), or choose another optimizer, such as 'adamw_torch'."
            )

    def build(self) -> ModelDeepSpeedStrategy:
        """Build a `DeepSpeedStrategy` whose engine wraps the model instead of the LightningModule.

        Raises:
            ValueError: something is "auto" still.
        """
        # The imports draw random numbers.
        with preserved_host_rng():
            from ...lightning_modules.distributed.deepspeed_strategy import ModelDeepSpeedStrategy

            choose_accelerator(self.device)
            options = {**self.options, "config": self.engine_config()}
            return ModelDeepSpeedStrategy(**options)

    def precision(self, name: str, device: str) -> EnginePrecision:
        """See `Strategy.precision`: DeepSpeed casts and scales itself."""
        from ...lightning_modules.distributed.deepspeed_strategy import EnginePrecision

        return EnginePrecision(name, device)

    def require_filled(self) -> None:
        """Check that the configuration is complete, so that training can begin.

        Raises:
            ValueError: something is "auto" still.
        """
        if self.open_keys:
            raise ValueError(
                f"deepspeed: {', '.join(self.open_keys)} cannot be derived from the hidden_size "
                'and the number of steps. Write numbers instead of "auto".'
            )

    def engine_config(self) -> dict[str, Any]:
        """Return the configuration of the engine."""
        # An evaluation may run with "auto" values, which it does not need.
        config = _without_open(self.options["config"])

        # Do not let DeepSpeed print every few steps.
        config.setdefault("steps_per_print", 2**63 - 1)

        # Unsharded float32 gradients are clipped as without DeepSpeed.
        has_bf16 = value_at(config, "bf16.enabled") is True
        has_fp16 = value_at(config, "fp16.enabled") is True
        if self.stage == 0 and not has_bf16 and not has_fp16:
            config["gradient_clipping"] = 0.0
        return config

    def groups(self) -> list[Group]:
        """See `Strategy.groups`. There is one row for each section of the configuration."""
        config: Mapping[str, object] = self.options["config"]
        plain: dict[str, object] = {}
        sections: list[Group] = []
        for key, value in config.items():
            if isinstance(value, Mapping):
                sections.append(("deepspeed", f"config: {key}", value))
            else:
                plain[key] = value

        return [
            ("deepspeed", "Trainer(strategy=)", {"stage": self.stage}),
            ("deepspeed", "config", plain),
            *sections,
            (
                "ddp_backend, ddp_timeout",
                "DeepSpeedStrategy: group",
                picked(self.options, *PROCESS_GROUP_OPTIONS),
            ),
        ]

    @property
    def engine(self) -> Any:
        """Return the engine of the current or last training; None if the model has none."""
        model = self.forward_model
        return model if deepspeed_engine.has_optimizer(model) else None

    def _distribute_model(self, model: nn.Module, module: pl.LightningModule) -> nn.Module:
        """See `Strategy._distribute_model`. A training creates the engine with the optimizer."""
        if module.trainer.training:
            return model
        if deepspeed_engine.is_engine(model):
            return self.lightning.use_engine(model)
        if self.stage == 3:
            return self.lightning.shard(model)
        return model.to(self.lightning.root_device)

    def distribute_model(self, module: pl.LightningModule) -> nn.Module:
        """See `Strategy.distribute_model`."""
        model = super().distribute_model(module)
        self.input_dtype = deepspeed_engine.input_dtype(model)
        return model

    def non_embedding_parameters(self, model: nn.Module) -> int:
        """See `Strategy.non_embedding_parameters`. A sharded model cannot count them itself."""
        count = deepspeed_weights.non_embedding_parameters(model)
        if count is None:
            return super().non_embedding_parameters(model)
        return count

    def micro_batch(
        self, *, synchronize: bool, is_last: bool
    ) -> contextlib.AbstractContextManager[object]:
        """Tell an engine that counts micro-batches whether a step follows."""
        if self.engine is None:
            return super().micro_batch(synchronize=synchronize, is_last=is_last)
        if self.engine.managed_gradient_accumulation():
            self.engine.set_gradient_accumulation_boundary(is_last)
        return contextlib.nullcontext()

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[object]:
        """See `Strategy.no_sync`. During a run, see `micro_batch`."""
        if self.is_running and self.is_trained_model(model):
            return contextlib.nullcontext()
        return super().no_sync(model)

    @property
    def clips_in_step(self) -> bool:
        """See `Strategy.clips_in_step`."""
        return deepspeed_engine.clips_gradients(self.forward_model)

    def clip_grad_norm(
        self, parameters: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """See `Strategy.clip_grad_norm`. An engine that clips itself only reports the last norm."""
        if not self.clips_in_step:
            return super().clip_grad_norm(parameters, max_norm, norm_type)
        device = parameters[0].device if parameters else None
        return torch.as_tensor(self.last_grad_norm(), device=device)

    def clip_grad_values(self, parameters: Iterable[torch.Tensor], limit: float) -> None:
        """See `Strategy.clip_grad_values`."""
        raise NotImplementedError(
            "clip_grad_value_ is not supported with DeepSpeed. Set max_grad_norm instead."
        )

    def last_grad_norm(self) -> torch.Tensor | float:
        """See `Strategy.last_grad_norm`."""
        return deepspeed_engine.last_grad_norm(self.forward_model)

    @property
    def step_was_skipped(self) -> bool | None:
        """See `Strategy.step_was_skipped`."""
        if self.is_running and self.clips_in_step:
            return not self.forward_model.was_step_applied()
        return None

    def make_optimizers(
        self, module: nn.Module, steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """Create optimizer, engine and schedule.

        DeepSpeed creates the optimizer or the schedule if the configuration has a section for it.
        """
        self.require_filled()
        trainer = self.require_trainer()
        config = self.lightning.config
        makes_optimizer = bool(config.get("optimizer"))
        makes_schedule = bool(config.get("scheduler"))

        # The optimizer of an earlier run holds flat tensors of that run instead of the parameters.
        trainer.optimizer = None
        if not makes_optimizer and not makes_schedule:
            trainer.create_optimizer_and_scheduler(num_training_steps=steps)
        elif not makes_optimizer:
            trainer.create_optimizer()

        # DeepSpeed wraps the optimizer, and drops its empty groups.
        filled: list[bool] = []
        if not makes_optimizer:
            self._check_made_optimizer(trainer)
            filled = [bool(group["params"]) for group in trainer.optimizer.param_groups]
        engine = self.lightning.train(self.forward_model, trainer.optimizer)
        trainer.optimizer = engine.basic_optimizer

        # The training loop steps the schedule, not the engine.
        schedule = engine.lr_scheduler
        engine.lr_scheduler = None
        if makes_schedule:
            trainer.lr_scheduler = schedule
            self.makes_schedule = True
        elif makes_optimizer:
            trainer.create_scheduler(num_training_steps=steps, optimizer=engine.basic_optimizer)
        else:
            _leave_out_empty_groups(trainer.lr_scheduler, filled)

        # Forward passes call the engine from now on.
        trainer.model_wrapped = engine
        trainer.deepspeed = engine
        module.model = engine
        self.input_dtype = deepspeed_engine.input_dtype(engine)

        if isinstance(trainer.lr_scheduler, LRScheduler):
            return trainer.optimizer, trainer.lr_scheduler
        return trainer.optimizer, None

    # Saving and loading.

    @property
    def engine_writes(self) -> bool:
        """See `Strategy.engine_writes`."""
        return self.engine is not None

    @property
    def gathers_on_save(self) -> bool:
        """See `Strategy.gathers_on_save`. The configuration can disable it in stage 3."""
        if self.stage != 3:
            return True
        return value_at(self.options["config"], GATHER, True) is not False

    def saves_parts(self, *, checkpoint: bool) -> bool:
        """See `Strategy.saves_parts`.

        Without gathered weights, only the engine's files are written, for models too.
        """
        return not self.gathers_on_save

    def save_weights(
        self, folder: str, *, files: CheckpointFiles, step: int, states_follow: bool
    ) -> None:
        """See `Strategy.save_weights`."""
        # The engine's states contain the weights.
        if states_follow:
            return
        setting = "stage3_gather_16bit_weights_on_model_save is False"
        if self.engine is None:
            raise ValueError(
                f"{setting}, and the model was not trained by DeepSpeed: there is nothing to save."
            )
        if self.should_log:
            logger.warning(
                "%s, so %s gets the shards of all ranks; zero_to_fp32.py merges them.",
                setting,
                folder,
            )
        self._save_states(folder, step)

    def weights_are_in_parts(self, checkpoint: str) -> bool:
        """See `Strategy.weights_are_in_parts`."""
        if not os.path.isdir(checkpoint):
            return False
        return saved_states(checkpoint) is not None and not has_weights(Path(checkpoint))

    def load_weights(self, model: nn.Module, checkpoint: str) -> None:
        """See `Strategy.load_weights`. Shards are loaded by the engine, if it exists."""
        if not self.weights_are_in_parts(checkpoint):
            super().load_weights(model, checkpoint)
            return
        forward_model = self.forward_model_of(model)
        if self.is_running and deepspeed_engine.has_optimizer(forward_model):
            self._load_states(checkpoint)

    def save_optimizer(
        self, folder: str, *, files: CheckpointFiles, checkpoint: bool, step: int
    ) -> None:
        """See `Strategy.save_optimizer`."""
        if self.engine is None:
            super().save_optimizer(folder, files=files, checkpoint=checkpoint, step=step)
        else:
            self._save_states(folder, step)

    def require_fitting(self, checkpoint: str) -> None:
        """See `Strategy.require_fitting`. Stages 1 to 3 can load each other's states, but not those
        of 0.
        """
        saved = saved_states(checkpoint)
        if saved is None or self._is_sharded_as_now(saved):
            return

        stage = self.stage
        stage_before = " or ".join(map(str, saved.stages))
        if stage == 0 or 0 in saved.stages:
            raise ValueError(
                f"{checkpoint} was written with zero_optimization.stage {stage_before}, which "
                f"stage {stage} cannot read. Set it to {stage_before}."
            )

        # States can be resharded, unless options distribute them in another way.
        for key, prevents_resharding in _NOT_RESHARDED.items():
            value = value_at(self.options["config"], key)
            if prevents_resharding(value):
                raise ValueError(
                    f"{checkpoint} was written by {saved.processes} processes in stage "
                    f"{stage_before}, and with {key}={value!r} it cannot be resharded. Remove "
                    "that key."
                )

        # Raises if files are missing or damaged.
        ZeroStates(checkpoint)

    def load_optimizer(self, checkpoint: str) -> bool:
        """See `Strategy.load_optimizer`."""
        # A run without remaining steps does not create an engine.
        if self.engine is None:
            return False
        if saved_states(checkpoint) is None:
            logger.warning(
                "%s has no states of DeepSpeed; training continues with a new optimizer.",
                checkpoint,
            )
            return False
        self._load_states(checkpoint)
        return True

    def read_schedule(self, checkpoint: str) -> dict[str, object] | None:
        """See `Strategy.read_schedule`.

        In checkpoints of the reference, DeepSpeed's files contain the schedule if DeepSpeed created
        the optimizer or the schedule.
        """
        schedule = super().read_schedule(checkpoint)
        if schedule is None:
            return saved_schedule(checkpoint)
        return schedule

    def schedule_loaded(self) -> None:
        """Set the learning rate that DeepSpeed's schedules do not restore from their state."""
        trainer = self.require_trainer()
        if not isinstance(trainer.lr_scheduler, LRScheduler):
            rates = [group["lr"] for group in trainer.optimizer.param_groups]
            trainer.lr_scheduler._last_lr = rates

    def bytes_to_save(
        self, optimizer_states: list[object], other_states: list[object], *, processes: int
    ) -> int:
        """See `Strategy.bytes_to_save`.

        The engine writes weights twice, and in float32 next to the optimizer states.
        """
        if self.engine is None:
            return super().bytes_to_save(optimizer_states, other_states, processes=processes)
        return 2 * tensor_bytes(optimizer_states) * processes

    def _load_states(self, checkpoint: str) -> None:
        """Load DeepSpeed's states, and reshard those of another world size or stage."""
        engine = self.engine
        strict = not self._has_adapter
        saved = saved_states(checkpoint)
        if saved is None or self._is_sharded_as_now(saved):
            deepspeed_states.load_states(engine, checkpoint, strict=strict)
        else:
            deepspeed_states.load_full_states(engine, ZeroStates(checkpoint), strict=strict)

    def _is_sharded_as_now(self, saved: SavedStates) -> bool:
        has_as_many_ranks = saved.processes in (None, self.processes_on_disk)
        return has_as_many_ranks and self.stage in saved.stages

    def _save_states(self, folder: str, step: int) -> None:
        engine = self.engine
        deepspeed_states.save_states(engine, folder, step, without_frozen=self._has_adapter)

    @property
    def _has_adapter(self) -> bool:
        model = self.require_trainer().model
        return base_of_adapter(model) is not unwrap_model(model)


def _leave_out_empty_groups(schedule: Any, filled: list[bool]) -> None:
    """Remove the empty parameter groups from a schedule, because DeepSpeed drops them.

    With LoRA, for example, the group without weight decay is empty.
    """
    for name in ("base_lrs", "lr_lambdas", "_last_lr"):
        values = getattr(schedule, name, ())
        if len(values) == len(filled):
            setattr(schedule, name, list(itertools.compress(values, filled)))


def _without_open(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without "auto" values, including those in its sections."""
    closed: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            closed[key] = _without_open(value)
        elif value != "auto":
            closed[key] = value
    return closed


def _add_what_is_missing(config: dict[str, Any], args: TrainingArguments) -> None:
    """Add missing keys to the configuration."""
    config.setdefault("train_micro_batch_size_per_gpu", args.per_device_train_batch_size)
    config.setdefault("gradient_accumulation_steps", args.gradient_accumulation_steps)
    config.setdefault("gradient_clipping", args.max_grad_norm)
    config["managed_gradient_accumulation"] = _must_count_micro_batches(config)
    if args.mixed_precision != "no":
        config.setdefault(args.mixed_precision, {"enabled": True})

    # The Trainer's optimizer may be of any class. Do not let DeepSpeed require its CPU Adam, which
    # must be compiled.
    if "optimizer" not in config:
        config["zero_allow_untested_optimizer"] = True
        config.setdefault("zero_force_ds_cpu_optimizer", False)
        return

    # Use torch's Adam on the CPU, because DeepSpeed's must be compiled.
    is_adam = str(config["optimizer"].get("type", "")).lower() in ("adam", "adamw")
    if is_adam and args.device.type == "cpu":
        options = config["optimizer"].setdefault("params", {})
        options.setdefault("torch_adam", True)


def _must_count_micro_batches(config: Mapping[str, Any]) -> bool:
    """Return whether DeepSpeed synchronises gradients in the last micro-batch, not when it steps.

    The last micro-batch may then have only one backward pass.
    """
    # The Trainer clips the synchronised gradients of stage 0 itself, before the step.
    stage = value_at(config, "zero_optimization.stage", 0)
    if stage == 0:
        return True

    # DeepSpeed cannot do otherwise with these settings.
    overlaps = stage == 1 and value_at(config, "zero_optimization.overlap_comm", False)
    return bool(overlaps or value_at(config, "compile.deepcompile", False))


def require_deepspeed() -> None:
    """Check that a supported version of DeepSpeed is installed.

    Raises:
        ImportError: DeepSpeed is not installed, or older than `_LOWEST_VERSION`.
    """
    command = f"DS_BUILD_OPS=0 pip install --no-build-isolation 'deepspeed>={_LOWEST_VERSION}'"
    if not is_installed("deepspeed"):
        raise ImportError(
            f"The argument deepspeed needs the package deepspeed, which is not installed: {command}"
        )
    version = installed("deepspeed")
    if version is not None and is_older(version, _LOWEST_VERSION):
        raise ImportError(
            f"deepspeed {version} is installed, but versions before {_LOWEST_VERSION} may "
            f"accumulate wrong gradients: {command}"
        )
