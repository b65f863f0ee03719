"""Construct the Lightning Trainer, and the context of its runs."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ...lightning_modules.distributed.cluster_environments import FixedRankEnvironment
from ...lightning_modules.internals import fast_path, lightning_internals
from ...lightning_modules.internals.lightning_import import Logger, Precision, callbacks_of
from ...lightning_modules.internals.lightning_import import Trainer as LightningTrainer
from ...lightning_modules.internals.precision import casting
from ...lightning_modules.training.router_losses import router_losses_of
from ..evaluation.module import EvaluationModule
from .planning import plan_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .. import Trainer
    from ..strategies.plan import RunPlan
    from ..strategies.strategy import Strategy


def build_lightning_trainer(trainer: Trainer, plan: RunPlan, **kwargs: Any) -> LightningTrainer:
    """Return the Lightning Trainer for a plan, with all of Lightning's defaults disabled.

    Every parameter is passed explicitly. Otherwise `lightning.Trainer` would read it from
    environment variables such as `PL_TRAINER_LIMIT_TRAIN_BATCHES`, but only the training arguments
    may affect a training.

    Args:
        trainer: the Trainer, with the Lightning callbacks of the user.
        plan: the plan of the run.
        kwargs: further arguments of `lightning.Trainer`.
    """
    callbacks = trainer._lightning_callbacks
    plugins = [_make_precision_plugin(trainer, plan)]

    # Fix the ranks, so that Lightning neither detects a cluster environment nor launches processes.
    if not plan.strategy.manages_processes:
        process = trainer.args.distributed_state
        environment = FixedRankEnvironment(
            rank=process.rank,
            local_rank=process.local_rank,
            world_size=process.world_size,
            node_rank=process.rank // process.local_world_size,
        )
        plugins.append(environment)

    # A logger is only needed by Lightning callbacks.
    logger: ForwardingLogger | bool = False
    if callbacks:
        logger = ForwardingLogger(partial(_log, trainer), plan.default_root_dir)

    parameters = _lightning_defaults() | plan.trainer_kwargs()
    parameters |= {
        "plugins": plugins,
        "callbacks": list(callbacks),
        "logger": logger,
        "log_every_n_steps": 1,  # avoids a warning; a training sets it at its start
        "enable_checkpointing": _has_callback(callbacks, "Checkpoint"),
        "enable_progress_bar": _has_callback(callbacks, "ProgressBar"),
        "enable_model_summary": _has_callback(callbacks, "ModelSummary"),
        # The Trainer decides when to evaluate, and its own samplers shard the data.
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        # Tensors created in inference mode cannot be used in a later backward pass.
        "inference_mode": False,
        # Not used for profiling. Lightning runs each hook within its profiler, which allows this
        # class to convert a StopIteration from a hook into an error. Lightning's loops would take
        # it for the end of the data.
        "profiler": fast_path.HookGuard(),
    }
    with lightning_internals.packages_searched_once(), warnings.catch_warnings():
        # Without Lightning's advice to use a GPU that the arguments do not ask for.
        warnings.filterwarnings("ignore", message="[GT]PU available but not used")
        lightning_trainer = LightningTrainer(**(parameters | kwargs))
    lightning_internals.keep_signal_handlers(lightning_trainer)
    fast_path.use_fast_loops(lightning_trainer)
    return lightning_trainer


@cache
def _lightning_defaults() -> dict[str, Any]:
    """Return the parameters of `lightning.Trainer` with their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(LightningTrainer).parameters.items()
    }


class ForwardingLogger(Logger):
    """Logger for the Lightning callbacks of the user, which forwards their metrics to the Trainer.

    Args:
        listener: called with the logged metrics; the step is that of the Trainer.
        save_dir: the folder of the logger, below which a `ModelCheckpoint` writes.
    """

    def __init__(self, listener: Callable[[dict[str, Any]], None], save_dir: str) -> None:
        super().__init__()
        self._listener = listener
        self._save_dir = save_dir

    @property
    def name(self) -> str:
        """Return an empty name, so that no subfolder is created."""
        return ""

    @property
    def version(self) -> str:
        """Return an empty version, so that no subfolder is created."""
        return ""

    @property
    def save_dir(self) -> str:
        """Return the folder in which Lightning callbacks write."""
        return self._save_dir

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Forward the metrics on every rank, because each rank keeps a log history."""
        # The Trainer adds its own, fractional epoch.
        forwarded = {name: value for name, value in metrics.items() if name != "epoch"}
        if forwarded:
            self._listener(forwarded)

    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        """Do nothing, because the trackers already log the arguments."""


def _log(trainer: Trainer, metrics: dict[str, Any]) -> None:
    """Log the metrics of a Lightning callback through the Trainer."""
    numbers = {}
    for name, value in metrics.items():
        numbers[name] = value.item() if hasattr(value, "item") else value

    # `log` resets this flag, but the losses of this step may still have to be logged.
    should_log = trainer.control.should_log
    trainer.log(numbers)
    trainer.control.should_log = should_log


@contextmanager
def lightning_run(
    trainer: Trainer, module: EvaluationModule, **kwargs: Any
) -> Iterator[LightningTrainer]:
    """Plan a run of Lightning, and connect the Trainer to its Lightning Trainer within the block.

    The plan and its strategy are kept until the next run.

    Args:
        trainer: the Trainer.
        module: the LightningModule to run.
        kwargs: further arguments of `lightning.Trainer`.
    """
    components = trainer._lightrainer
    plan = plan_of(trainer)
    strategy = plan.strategy
    components.plan = plan
    outer_strategy = trainer.accelerator.strategy
    outer_router_losses = components.router_losses

    # Show Lightning's own info messages at the level DEBUG only.
    is_quiet = not logging.getLogger("lightrainer").isEnabledFor(logging.DEBUG)
    with lightning_internals.quiet(is_quiet):
        if strategy.configures_model:
            module.distribute(partial(_distribute, trainer, strategy))
        lightning_trainer = build_lightning_trainer(trainer, plan, **kwargs)

        autocast_factory = getattr(
            lightning_trainer.precision_plugin, "autocast_context_manager", None
        )
        mixed_precision = nullcontext()
        if autocast_factory is not None:
            mixed_precision = casting(trainer.model, autocast_factory)

        try:
            strategy.lightning = lightning_trainer.strategy
            trainer.accelerator.strategy = strategy
            components.device_of_run = trainer.args.device
            components.router_losses = router_losses_of(trainer.model)
            with lightning_internals.interruptible(), mixed_precision:
                yield lightning_trainer
        finally:
            components.device_of_run = None
            components.router_losses = outer_router_losses
            strategy.end_run()
            lightning_internals.release(lightning_trainer)

            # A copy of a Trainer that was made during a training shares the accelerator of that
            # training, so restore the strategy of that training.
            if outer_strategy.lightning is not None:
                trainer.accelerator.strategy = outer_strategy


def _distribute(trainer: Trainer, strategy: Strategy, module: EvaluationModule) -> nn.Module:
    """Distribute the model when Lightning configures it; return the module to call."""
    if strategy.sharded_model is None and hasattr(trainer.model, "num_parameters"):
        trainer._lightrainer.parameter_counter.count()  # of the whole model, before it is sharded
    return strategy.distribute_model(module)


def backward_of(
    lightning_trainer: LightningTrainer, module: EvaluationModule
) -> Callable[..., None] | None:
    """Return the function that runs the backward pass; None if `loss.backward()` suffices.

    Lightning's `backward` is needed if the strategy, the precision plugin or a callback hooks into
    it. Otherwise the loss is only scaled, if there is a gradient scaler.
    """
    if callbacks_of(lightning_trainer) or not fast_path.has_plain_steps(lightning_trainer):
        return module.manual_backward

    scaler = getattr(lightning_trainer.precision_plugin, "scaler", None)
    if scaler is None:
        return None

    def scale_and_backward(loss: torch.Tensor, **kwargs: Any) -> None:
        scaler.scale(loss).backward(**kwargs)

    return scale_and_backward


def _make_precision_plugin(trainer: Trainer, plan: RunPlan) -> Any:
    """Create the precision plugin of a plan, and replace the scaler of the accelerator."""
    device = trainer.args.device.type
    name: Any = plan.precision  # Lightning's types have a literal for each precision
    strategy_plugin = plan.strategy.precision(name, device)

    scaler = None
    if name == "16-mixed" and not plan.strategy.scales_losses:
        scaler = trainer.accelerator.renew_scaler()
    if scaler is not None:
        scaler.gradients_are_sharded = plan.strategy.shards_weights

    # Use the plugin of the strategy, or one of the two of this package.
    if strategy_plugin is not None:
        if hasattr(strategy_plugin, "scaler"):
            strategy_plugin.scaler = scaler
        return strategy_plugin
    if name == "32-true":
        return Precision()
    return fast_path.ForwardPrecision(name, device, scaler)


def _has_callback(callbacks: list[Any], class_name: str) -> bool:
    # Import lazily: the import is slow, and most trainings have no Lightning callback.
    from lightning.pytorch import callbacks as lightning_callbacks

    return any(
        isinstance(callback, getattr(lightning_callbacks, class_name)) for callback in callbacks
    )
