"""Translate the training arguments into a plan of Lightning objects, once for each run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ...lightning_modules.common.enums import OptimizerNames, SchedulerType, optimizer_name
from ...lightning_modules.optim import OptimizerConfig
from . import Strategy, choose
from .strategy import Row, shown

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy as LightningStrategy

    from ..arguments import TrainingArguments


PRECISIONS = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""Lightning's names of the values of `TrainingArguments.mixed_precision`."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Lightning's arguments for a run.

    They are derived from the training arguments once, when the run begins.
    """

    accelerator: str
    """Lightning accelerator: `cpu`, `cuda`, `mps` or `tpu`."""
    devices: int | list[int]
    """Number of processes on this machine, or the index of the device in use."""
    num_nodes: int
    """Number of machines."""
    strategy: Strategy
    """Strategy for the ranks."""
    precision: str
    """Name of Lightning's precision plugin."""
    default_root_dir: str
    """Default folder of Lightning callbacks."""
    rows_of_training: Callable[[], Iterable[Row]] = field(default=tuple, compare=False)
    """Returns rows about arguments that are read at each step, because callbacks may change them.
    """

    def trainer_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of `lightning.Trainer`, except the precision plugin."""
        strategy = self.strategy.build()
        if not isinstance(strategy, str):
            strategy = _without_reseeding(strategy)

        # Strategies may require an accelerator.
        accelerator = self.strategy.build_accelerator() or self.accelerator
        if accelerator == "cuda":
            from ...lightning_modules.internals.cuda_accelerator import QuietCudaAccelerator

            accelerator = QuietCudaAccelerator()
        return {
            "accelerator": accelerator,
            "devices": self.devices,
            "num_nodes": self.num_nodes,
            "strategy": strategy,
            "default_root_dir": self.default_root_dir,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (arguments, their name in Lightning, value) for every part of the plan."""
        return [
            ("use_cpu", "Trainer(accelerator=)", self.accelerator),
            ("launcher", "Trainer(devices=, num_nodes=)", f"{self.devices}, {self.num_nodes}"),
            ("launcher", "Trainer(plugins=)", "FixedRankEnvironment"),
            *self.strategy.rows(),
            ("bf16, fp16", "Trainer(precision=)", self.precision),
            *self.rows_of_training(),
            ("output_dir", "Trainer(default_root_dir=)", self.default_root_dir),
        ]

    def __repr__(self) -> str:
        rows = [("argument", "in Lightning", "value"), *self.rows()]
        first = max(len(row[0]) for row in rows)
        second = max(len(row[1]) for row in rows)
        return "\n".join(f"{row[0]:<{first}}  {row[1]:<{second}}  {row[2]}" for row in rows)


def _without_reseeding(strategy: LightningStrategy) -> LightningStrategy:
    """Keep RNG states, which strategies with several processes would reseed after a
    `lightning.seed_everything`.
    """
    from ...lightning_modules.internals.lightning_import import isolate_rng

    set_up = strategy.setup_environment

    def setup_environment() -> None:
        with isolate_rng():
            set_up()

    strategy.setup_environment = setup_environment
    return strategy


def translate(
    args: TrainingArguments,
    *,
    find_unused_parameters: bool = True,
    model: Any = None,
    steps: int | None = None,
) -> RunPlan:
    """Build the plan of a run.

    Args:
        args: the training arguments, which are not changed.
        find_unused_parameters: option of DDP, used if the arguments do not set it.
        model: the model, which may name its layers to shard.
        steps: number of optimizer steps of the training, if it is known.
    """
    device = args.device
    strategy = choose(args, find_unused_parameters=find_unused_parameters, model=model, steps=steps)
    local = args.distributed_state.local_world_size

    # A single process uses its device, which may not be the first GPU.
    devices: int | list[int] = local
    if args.world_size == 1 and device.type not in ("cpu", "xla"):
        devices = [device.index or 0]
    return RunPlan(
        accelerator=strategy.accelerator or device.type,
        devices=devices,
        num_nodes=args.world_size // local,
        strategy=strategy,
        precision=PRECISIONS[args.mixed_precision],
        default_root_dir=str(args.output_dir),
        rows_of_training=partial(_rows_of_training, args),
    )


_WARM_UP_BY_THEMSELVES = (OptimizerNames.SCHEDULE_FREE_ADAMW, OptimizerNames.SCHEDULE_FREE_SGD)


def optimizer_config(args: TrainingArguments) -> OptimizerConfig:
    """Return the optimizer that the arguments describe."""
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


def _rows_of_training(args: TrainingArguments) -> list[Row]:
    """Describe launcher variables, length, clipping, optimizer, schedule, and trackers."""
    rows: list[Row] = []
    if args.set_by_launcher:
        rows.append(("launcher", "taken from its variables", ", ".join(args.set_by_launcher)))
    if args.torch_compile:
        compiled = {
            "backend": args.torch_compile_backend,
            "mode": args.torch_compile_mode,
            **args.compile_options,
        }
        rows.append(("torch_compile, torch_compile_*", "model.compile()", shown(compiled)))

    # Length and batches.
    length = f"{args.num_train_epochs:g}, {args.max_steps}"
    rows.append(("num_train_epochs, max_steps", "Trainer(max_epochs=), the last step", length))
    rows.append(
        (
            "gradient_accumulation_steps",
            "micro-batches in a batch",
            str(args.gradient_accumulation_steps),
        )
    )
    if args.max_tokens_per_batch:
        sampler = f"TokenBudgetSampler, {args.max_tokens_per_batch}"
        rows.append(("max_tokens_per_batch", "build_loader(sampler=)", sampler))

    # The step.
    clipped = f"{args.max_grad_norm:g}" if args.max_grad_norm else "none"
    trackers = ", ".join(args.report_to or ()) or "none"
    rows.append(("max_grad_norm", "clipping before the step", clipped))
    rows.append(
        ("optim, adam_*, weight_decay", "configure_optimizers()", _described_optimizer(args))
    )
    rows.append(
        ("lr_scheduler_*, warmup_steps", "configure_optimizers()", _described_schedule(args))
    )
    rows.append(("report_to", "callbacks", trackers))
    return rows


def _described_optimizer(args: TrainingArguments) -> str:
    config = optimizer_config(args)
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    name = optimizer_name(options.pop("name"))
    parts = [f"{field}={value}" for field, value in options.items() if value is not None]
    if args.parameter_rules:
        parts.append(f"parameter_rules={args.parameter_rules}")
    return ", ".join([name, *parts])


def _described_schedule(args: TrainingArguments) -> str:
    options = cast(Mapping[str, Any], args.lr_scheduler_kwargs or {})
    parts = [SchedulerType(args.lr_scheduler_type).value, f"warm-up {args.warmup_steps:g}"]
    parts += [f"{name}={value}" for name, value in options.items()]
    return ", ".join(parts)


DRY_RUN = "LIGHTRAINER_DRY_RUN"
"""Environment variable with which `python -m lightrainer --dry-run script.py` requests only the
plan, unless it is 0.
"""


def stop_if_asked_to(plan: RunPlan, *, is_main_process: bool) -> None:
    """Print the plan of a run and exit, if the environment requests a dry run.

    Args:
        plan: the plan of the run.
        is_main_process: whether this process prints the plan.

    Raises:
        SystemExit: with status 0, in a dry run.
    """
    if os.environ.get(DRY_RUN, "0") in ("", "0"):
        return
    if is_main_process:
        print(plan, flush=True)
    raise SystemExit(0)
