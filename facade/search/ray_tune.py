"""A search that Ray runs, in processes of its own, through Ray's own library."""

from __future__ import annotations

import copy
import logging
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from ...callbacks import LoggerCallback, NotebookProgressCallback, ProgressCallback
from ...lightning_modules.checkpoints import BackgroundWriter, WriteNow
from ..arguments.enums import HPSearchBackend
from ..compat.hyperparameters import BestRun, default_hp_space_ray
from ..trainer.memory_report import MemoryTracker
from .backend import Backend
from .final import ray_folder
from .kept import forget_optimizer
from .options import SearchOptions
from .search import Search

logger = logging.getLogger(__name__)


class RayBackend(Backend):
    """Ray Tune: its search algorithms, schedulers and resources."""

    name = HPSearchBackend.RAY
    package = "'ray[tune]'"
    default_hp_space = staticmethod(default_hp_space_ray)

    def check(self, trainer: Any, options: SearchOptions) -> None:
        """Refuse what Ray does in another way.

        Raises:
            ValueError: says what to do instead.
        """
        said = []
        if trainer.args.world_size > 1:
            said.append("Ray starts processes by itself: do not start this script with torchrun.")
        if options.several:
            said.append("Ray has one objective: pass one direction, or backend='optuna'.")
        if options.report:
            said.append("report is made of a study of optuna; Ray writes reports of its own, see storage_path.")
        for name in ("sampler", "pruner", "study_name", "storage", "load_if_exists", "timeout", "n_jobs"):
            if name in options.backend:
                said.append(f"{name} belongs to optuna. Ray's own are search_alg, scheduler, name, time_budget_s, ...")
        scheduler = options.backend.get("scheduler")
        if scheduler is not None and trainer.args.eval_strategy == "no":
            said.append(
                f"scheduler={type(scheduler).__name__} looks at evaluations in the middle of a trial: set "
                "eval_strategy."
            )
        if said:
            raise ValueError("\n".join(said))

    def run(self, trainer: Any, search: Search) -> BestRun:
        """See `Backend.run`; `run_summary` is what `ray.tune.run` returns."""
        tune = import_module("ray.tune")
        keywords = dict(search.options.backend)
        direction, scope = search.options.directions[0], keywords.pop("scope", "last")
        if "resources_per_trial" not in keywords:
            keywords["resources_per_trial"] = {"cpu": 1, **({"gpu": 1} if trainer.args.n_gpu > 0 else {})}
        if "progress_reporter" not in keywords:
            keywords["progress_reporter"] = tune.CLIReporter(metric_columns=["objective"])
        trial = tune.with_parameters(_train_once, portable=portable(trainer, search.options))
        analysis = tune.run(trial, config=trainer.hp_space(None), num_samples=search.options.n_trials or -1, **keywords)
        best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=scope)
        if best is None:
            raise ValueError("No trial was completed: see what Ray says about each.")
        return BestRun(best.trial_id, best.last_result["objective"], dict(best.config), analysis)


def portable(trainer: Any, options: SearchOptions) -> Any:
    """A copy of the Trainer that can be sent to another process: without model, threads and the like."""
    sent = copy.copy(trainer)
    # Callbacks are sent with it, but what they hold of this process is not.
    sent.callback_handler = copy.copy(trainer.callback_handler)
    sent.callback_handler.callbacks = [copy.copy(one) for one in trainer.callback_handler.callbacks]
    sent.callback_handler.unlisted = {}
    for callback in sent.callback_handler.callbacks:
        if isinstance(callback, LoggerCallback):
            callback.__dict__.pop("save_model", None)
    sent.callback_handler.model = sent.model = sent.model_wrapped = None
    forget_optimizer(sent)
    for name in ("accelerator", "gather_function", "_background", "_writer", "_memory_tracker", "_search"):
        setattr(sent, name, None)
    sent._ray_options = options
    return sent


def revive(trainer: Any) -> Any:
    """Give a Trainer that was sent what was left behind."""
    trainer.create_accelerator_and_postprocess()
    trainer._background, trainer._writer = BackgroundWriter(), WriteNow()
    trainer._memory_tracker = MemoryTracker(True)
    for callback in trainer.callback_handler.callbacks:
        trainer._lend_save_model(callback)
    if trainer.pop_callback(NotebookProgressCallback):
        trainer.add_callback(ProgressCallback)
    trainer.model = trainer.model_wrapped = trainer.call_model_init()  # what is looked at before the trial has its own
    return trainer


def _train_once(config: dict[str, Any], portable: Any) -> None:
    """What Ray runs, in a process of its own."""
    tune = import_module("ray.tune")
    trainer = revive(copy.copy(portable))
    trainer._search = search = Search(trainer, trainer._ray_options)
    search.folder = ray_folder(trainer, str(tune.get_context().get_trial_id()), dict(config))
    trainer.objective = None
    checkpoint = tune.get_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        start = None
        if checkpoint is not None:
            checkpoint.to_directory(folder)
            start = str(next(Path(folder).glob("checkpoint-*")))
        trainer.train(resume_from_checkpoint=start, trial=dict(config))
    if trainer.objective is None:
        metrics = trainer.evaluate()
        report(trainer, metrics, search.judge(metrics))


def report(trainer: Any, metrics: dict[str, float], value: Any) -> None:
    """Tell Ray about an evaluation, with a checkpoint where one is due."""
    tune = import_module("ray.tune")
    told = {**metrics, "objective": value}
    if not trainer.control.should_save:
        tune.report(told)
        return
    with tempfile.TemporaryDirectory() as folder:
        output, trainer.args.output_dir = trainer.args.output_dir, folder
        search, trainer._search = trainer._search, None
        backend, trainer.hp_search_backend = trainer.hp_search_backend, None
        try:
            trainer._save_checkpoint(trainer.model, None)
        finally:
            trainer.args.output_dir, trainer._search, trainer.hp_search_backend = output, search, backend
        tune.report(told, checkpoint=tune.Checkpoint.from_directory(folder))
