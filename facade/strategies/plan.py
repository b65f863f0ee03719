"""Translates the arguments, once a run, into what Lightning is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.suggestions import OptimizerNames, SchedulerType
from ...lightning_modules.optim import OptimizerConfig
from ..distributed.cluster_environment import environment_name
from . import StrategyPlan, choose

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


PRECISIONS = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""`TrainingArguments.mixed_precision`, and what Lightning calls it."""


@dataclass(frozen=True, kw_only=True)
class SchedulePlan:
    """Learning rate schedule; its length is known when the data is."""

    name: str
    """A member of `SchedulerType`."""
    warmup: float
    """Steps, or below 1 a share of all steps."""
    options: dict[str, Any]
    """Further arguments of the schedule."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything about a run that follows from the arguments alone; later code reads this, not the environment."""

    accelerator: str
    """Lightning accelerator: `cpu`, `cuda`, `mps` or `tpu`."""
    devices: int | list[int]
    """Processes on this machine, or the index of the one device in use."""
    num_nodes: int
    """Machines."""
    environment: str
    """What says to Lightning where a process stands: its class for the launcher, or one of ours that was told."""
    strategy: StrategyPlan
    """How the processes work together."""
    precision: str
    """Lightning precision plugin, by its name."""
    epochs: float
    """Passes over the data, if `max_steps` is not given."""
    max_steps: int
    """Optimizer steps; -1 means as many as `epochs` take."""
    micro_batches: int
    """Micro-batches in the window that is one Lightning batch and one optimizer step."""
    max_grad_norm: float
    """Gradients are scaled down to this norm; 0 means never."""
    optimizer: OptimizerConfig
    """Optimizer and its hyperparameters."""
    schedule: SchedulePlan
    """Learning rate schedule."""
    loggers: tuple[str, ...]
    """Where logs are reported to."""
    default_root_dir: str
    """Where Lightning callbacks write, if they are not told otherwise."""

    def trainer_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `lightning.Trainer` for this run, but for the precision."""
        return {
            "accelerator": self.strategy.build_accelerator() or self.accelerator,
            "devices": self.devices,
            "num_nodes": self.num_nodes,
            "strategy": self.strategy.build(),
            "default_root_dir": self.default_root_dir,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """(arguments, what they are called in Lightning, value) of every part of the plan."""
        more = "".join(f", {name}={value}" for name, value in self.schedule.options.items())
        schedule = f"{self.schedule.name}, warm-up {self.schedule.warmup:g}{more}"
        return [
            ("use_cpu", "Trainer(accelerator=)", self.accelerator),
            ("launcher", "Trainer(devices=, num_nodes=)", f"{self.devices}, {self.num_nodes}"),
            ("launcher", "Trainer(plugins=)", self.environment),
            *self.strategy.rows(),
            ("bf16, fp16", "Trainer(precision=)", self.precision),
            (
                "num_train_epochs, max_steps",
                "Trainer(max_epochs=), the last step",
                f"{self.epochs:g}, {self.max_steps}",
            ),
            ("gradient_accumulation_steps", "micro-batches in a batch", str(self.micro_batches)),
            ("max_grad_norm", "clipping before the step", f"{self.max_grad_norm:g}" if self.max_grad_norm else "none"),
            ("optim, adam_*, weight_decay", "configure_optimizers()", _described(self.optimizer)),
            ("lr_scheduler_*, warmup_steps", "configure_optimizers()", schedule),
            ("report_to", "callbacks", ", ".join(self.loggers) or "none"),
            ("output_dir", "Trainer(default_root_dir=)", self.default_root_dir),
        ]

    def __repr__(self) -> str:
        rows = [("argument", "in Lightning", "value"), *self.rows()]
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(f"{row[0]:<{first}}  {row[1]:<{second}}  {row[2]}" for row in rows)


def translate(
    args: TrainingArguments, *, find_unused_parameters: bool = True, model: Any = None, steps: int | None = None
) -> RunPlan:
    """Make the plan of a run.

    Args:
        args: the training arguments; they are not changed.
        find_unused_parameters: for DDP, where the arguments leave it open.
        model: tells which of its layers to shard, where the arguments leave that to it.
        steps: optimizer steps of the training, where the data is known.
    """
    device = args.device
    strategy = choose(args, find_unused_parameters=find_unused_parameters, model=model, steps=steps)
    distributed = args.world_size > 1
    local = args.distributed_state.local_world_size
    return RunPlan(
        accelerator=strategy.accelerator or device.type,
        devices=local if distributed or device.type in ("cpu", "xla") else [device.index or 0],
        num_nodes=args.world_size // local,
        environment=environment_name(args.distributed_state),
        strategy=strategy,
        precision=PRECISIONS[args.mixed_precision],
        epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        micro_batches=args.gradient_accumulation_steps,
        max_grad_norm=args.max_grad_norm,
        optimizer=optimizer_config(args),
        schedule=SchedulePlan(
            name=SchedulerType(args.lr_scheduler_type).value,
            warmup=args.warmup_steps,
            options=dict(cast(Mapping[str, Any], args.lr_scheduler_kwargs or {})),
        ),
        loggers=tuple(args.report_to or ()),
        default_root_dir=str(args.output_dir),
    )


_WARM_UP_BY_THEMSELVES = (OptimizerNames.SCHEDULE_FREE_ADAMW, OptimizerNames.SCHEDULE_FREE_SGD)


def optimizer_config(args: TrainingArguments) -> OptimizerConfig:
    """The optimizer that the arguments describe."""
    return OptimizerConfig(
        name=args.optim,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        beta1=args.adam_beta1,
        beta2=args.adam_beta2,
        epsilon=args.adam_epsilon,
        args=args.optim_args,
        target_modules=args.optim_target_modules,
        warmup_steps=args.warmup_steps if args.optim in _WARM_UP_BY_THEMSELVES else None,
    )


def _described(optimizer: OptimizerConfig) -> str:
    fields = {field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)}
    name = OptimizerNames(fields.pop("name")).value
    return ", ".join([name, *(f"{field}={value}" for field, value in fields.items() if value is not None)])
