"""A search that Ray runs, in processes of its own, through Ray's own library."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments.enums import HPSearchBackend
from .backend import Backend
from .hyperparameters import BestRun, default_hp_space_ray
from .options import SearchOptions
from .search import Search

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

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
        assert search.transport is not None
        sent, revive = search.transport.portable(trainer), search.transport.revive
        trial = tune.with_parameters(_train_once, portable=sent, revive=revive, options=search.options)
        analysis = tune.run(trial, config=trainer.hp_space(None), num_samples=search.options.n_trials or -1, **keywords)
        best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=scope)
        if best is None:
            raise ValueError("No trial was completed: see what Ray says about each.")
        return BestRun(best.trial_id, best.last_result["objective"], dict(best.config), analysis)


def _train_once(
    config: dict[str, Any], portable: Any, revive: Callable[[Any], tuple[Any, Any]], options: SearchOptions
) -> None:
    """Train one trial; Ray calls this in a process of its own."""
    tune = import_module("ray.tune")
    trainer, session = revive(portable)
    session.current = search = Search(trainer, options)
    search.folder = search.folders.name_of_ray(str(tune.get_context().get_trial_id()), dict(config))
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


def report(host: Trainer, metrics: dict[str, float], value: Any) -> None:
    """Tell Ray about an evaluation, with a checkpoint where one is due."""
    tune = import_module("ray.tune")
    told = {**metrics, "objective": value}
    if not host.control.should_save:
        tune.report(told)
        return
    with tempfile.TemporaryDirectory() as folder:
        output, host.args.output_dir = host.args.output_dir, folder
        backend, host.hp_search_backend = host.hp_search_backend, None  # a checkpoint of no trial
        try:
            host._save_checkpoint(host.model, None)
        finally:
            host.args.output_dir, host.hp_search_backend = output, backend
        tune.report(told, checkpoint=tune.Checkpoint.from_directory(folder))
