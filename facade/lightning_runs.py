"""Builds a Lightning Trainer for a plan, and runs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..lightning_modules import engine
from ..lightning_modules._lightning import Trainer as LightningTrainer
from ..lightning_modules.collect import map_nested
from ..lightning_modules.driven import DrivenModule
from .contracts import Host
from .evaluation import Evaluation
from .plan import RunPlan
from .sizes import has_length

if TYPE_CHECKING:
    from ..lightning_modules.windows import WindowLoader
    from .run import TrainingRun


class EvaluationDriver:
    """Drives a module that is only evaluated."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    def evaluation_step(self, inputs: Any) -> None:
        """One batch."""
        self.evaluation.step(inputs)


def build_lightning_trainer(plan: RunPlan, callbacks: list[Any], **kwargs: Any) -> LightningTrainer:
    """The Lightning Trainer of a plan: bare, so that only what was asked for happens.

    Args:
        plan: the translated arguments.
        callbacks: Lightning callbacks of the user.
        kwargs: further arguments of `lightning.Trainer`.
    """
    trainer = LightningTrainer(
        **plan.trainer_kwargs(),
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=_any_of(callbacks, "Checkpoint"),
        enable_progress_bar=_any_of(callbacks, "ProgressBar"),
        enable_model_summary=_any_of(callbacks, "ModelSummary"),
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        inference_mode=False,
        **_precision(plan.precision),
        **kwargs,
    )
    engine.leave_signals_alone(trainer)
    engine.step_lightly(trainer)
    return trainer


def run_fit(run: TrainingRun, windows: WindowLoader, *, max_epochs: int) -> None:
    """Train: `run` is called from Lightning's loops.

    Args:
        run: the driver.
        windows: the data.
        max_epochs: passes over it, -1 for no limit.
    """
    trainer = run.trainer
    module = DrivenModule(trainer.model, run)
    with engine.quiet(_is_quiet()):
        lightning_trainer = build_lightning_trainer(
            trainer.plan, trainer._lightning_callbacks, max_epochs=max_epochs, limit_val_batches=0
        )
    run.attach(lightning_trainer, module)
    try:
        with engine.quiet(_is_quiet()), engine.interruptible(), _bound(trainer, lightning_trainer, module):
            lightning_trainer.fit(module, engine.combined(windows, training=True), val_dataloaders=[])
    finally:
        engine.release(lightning_trainer)


def run_evaluation(trainer: Host, evaluation: Evaluation, *, started: float, test: bool) -> None:
    """Evaluate: inside of the running `fit` if there is one, otherwise as a run of its own.

    Args:
        trainer: the Trainer.
        evaluation: what to do with each batch.
        started: when the preparations began, seconds since the epoch.
        test: run Lightning's `test`, not `validate`.
    """
    if trainer._run is not None:
        trainer._setup_seconds = 0.0
        trainer._run.evaluate(evaluation)
        return
    if has_length(evaluation.feed) and len(evaluation.feed) == 0:
        trainer.model.eval()
        return
    module = DrivenModule(trainer.model, EvaluationDriver(evaluation))  # type: ignore[arg-type]
    with engine.quiet(_is_quiet()):
        lightning_trainer = build_lightning_trainer(trainer.plan, trainer._lightning_callbacks)
    trainer._setup_seconds = time.time() - started
    if not trainer._prepared:
        trainer._prepared = True
        trainer.model_preparation_time = round(trainer._setup_seconds, 4)
    loop = lightning_trainer.test if test else lightning_trainer.validate
    try:
        with engine.quiet(_is_quiet()), engine.interruptible(), _bound(trainer, lightning_trainer, module):
            loop(module, engine.combined(evaluation.feed, training=False), verbose=False)
    finally:
        engine.release(lightning_trainer)
    trainer.model.eval()  # as the reference leaves it


@contextmanager
def _bound(trainer: Host, lightning_trainer: LightningTrainer, module: DrivenModule) -> Iterator[None]:
    """Connect the accelerator to the run, and make reduced precision outputs float32, as the reference has them."""
    mixed = trainer.plan.precision != "32-true"
    hook = trainer.model.register_forward_hook(_to_float32) if mixed else None
    backward = _backward(lightning_trainer, module, mixed)
    trainer.accelerator.bind(backward, lightning_trainer.precision_plugin.forward_context)
    try:
        yield
    finally:
        trainer.accelerator.bind(None)
        if hook is not None:
            hook.remove()


def _backward(lightning_trainer: LightningTrainer, module: DrivenModule, mixed: bool) -> Callable[..., None] | None:
    """The backward pass as strategy and precision want it; None for torch's own."""
    if engine.nobody_listens(lightning_trainer):
        return None
    if not mixed:
        return module.manual_backward

    def outside_autocast(loss: torch.Tensor, **kwargs: Any) -> None:
        with torch.autocast(loss.device.type, enabled=False):
            module.manual_backward(loss, **kwargs)

    return outside_autocast


def _to_float32(module: Any, args: Any, output: Any) -> Any:
    half = (torch.float16, torch.bfloat16)
    return map_nested(
        lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in half else leaf, output
    )


def _precision(name: str) -> dict[str, Any]:
    return {"plugins": [engine.LeanPrecision()]} if name == "32-true" else {"precision": name}


def _any_of(callbacks: list[Any], kind: str) -> bool:
    from lightning.pytorch import callbacks as lightning_callbacks

    return any(isinstance(callback, getattr(lightning_callbacks, kind)) for callback in callbacks)


def _is_quiet() -> bool:
    """Lightning announces devices and limits at the level of INFO: heard only by those who asked for it."""
    return not logging.getLogger("lightrainer").isEnabledFor(logging.INFO)
