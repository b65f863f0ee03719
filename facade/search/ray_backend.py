"""A search with Ray Tune, whose processes get a copy of the Trainer."""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments.enums import HPSearchBackend
from .hyperparameters import BestRun, default_hp_space_ray
from .search_run import SearchOptions, SearchRun
from .trial_folders import folder_name

if TYPE_CHECKING:
    from .. import Trainer


class RayBackend:
    """Runs trials with Ray Tune: its search algorithms, schedulers and resources."""

    name = HPSearchBackend.RAY
    default_hp_space = staticmethod(default_hp_space_ray)

    def check(self, trainer: Any, options: SearchOptions) -> None:
        """Refuse options that Ray does not have.

        Raises:
            ValueError: says what to do instead.
        """
        problems = []
        if trainer.args.world_size > 1:
            problems.append(
                "Ray starts processes by itself: do not start this script with torchrun."
            )
        if options.several:
            problems.append("Ray has one objective: pass one direction, or backend='optuna'.")
        if options.report:
            problems.append(
                "report is made of a study of optuna; Ray writes reports of its own, see "
                "storage_path."
            )
        if options.enqueue or options.begin_with is not None:
            problems.append(
                "enqueue and begin_with belong to optuna. Ray's search_alg takes "
                "points_to_evaluate."
            )
        if options.backend.get("scheduler") is not None and trainer.args.eval_strategy == "no":
            problems.append(
                "scheduler compares evaluations in the middle of a trial: set eval_strategy."
            )
        if problems:
            raise ValueError("\n".join(problems))

    def run(self, trainer: Any, search: SearchRun) -> BestRun:
        """Run all trials; `run_summary` of the result is that of `ray.tune.run`."""
        tune = import_module("ray.tune")
        keywords = dict(search.options.backend)
        direction = search.options.directions[0]
        scope = keywords.pop("scope", "last")
        keywords.setdefault(
            "resources_per_trial", {"cpu": 1, **({"gpu": 1} if trainer.args.n_gpu > 0 else {})}
        )
        keywords.setdefault("progress_reporter", tune.CLIReporter(metric_columns=["objective"]))
        assert search.transport is not None
        sent = search.transport.portable(trainer)
        revive = search.transport.revive
        trial = tune.with_parameters(
            _train_once, portable=sent, revive=revive, options=search.options
        )
        analysis = tune.run(
            trial,
            config=trainer.hp_space(None),
            num_samples=search.options.n_trials or -1,
            **keywords,
        )
        best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=scope)
        if best is None:
            raise ValueError("No trial was completed: see what Ray says about each.")
        return BestRun(best.trial_id, best.last_result["objective"], dict(best.config), analysis)


def _train_once(config: dict[str, Any], portable: Any, revive: Any, options: SearchOptions) -> None:
    """Train one trial, in a process of Ray."""
    tune = import_module("ray.tune")
    trainer, of_trainer = revive(portable)
    of_trainer.current = search = SearchRun(trainer, options)
    search.folder = folder_name(
        trainer.hp_name, dict(config), str(tune.get_context().get_trial_id())
    )
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
    """Report an evaluation to Ray, with a checkpoint where one is due."""
    tune = import_module("ray.tune")
    reported = {**metrics, "objective": value}
    if not host.control.should_save:
        tune.report(reported)
        return
    with tempfile.TemporaryDirectory() as folder:
        output = host.args.output_dir
        host.args.output_dir = folder
        backend = host.hp_search_backend
        host.hp_search_backend = None  # a checkpoint outside of any trial
        try:
            host._save_checkpoint(host.model, None)
        finally:
            host.args.output_dir = output
            host.hp_search_backend = backend
        tune.report(reported, checkpoint=tune.Checkpoint.from_directory(folder))
