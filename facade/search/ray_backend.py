"""Search with Ray Tune, whose worker processes get a copy of the Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments.enums import HPSearchBackend
from .hyperparameters import BestRun, default_hp_space_ray
from .search_run import SearchOptions, SearchOwner, SearchRun
from .trial_folders import folder_name

if TYPE_CHECKING:
    from .. import Trainer


class RayBackend:
    """Runs trials with Ray Tune, including its search algorithms, schedulers and resources."""

    name = HPSearchBackend.RAY
    default_hp_space = staticmethod(default_hp_space_ray)

    def check(self, trainer: Trainer, options: SearchOptions) -> None:
        """Check that a search with Ray supports the options.

        Raises:
            ValueError: the message lists all unsupported options, each with an alternative.
        """
        problems = []
        if trainer.args.world_size > 1:
            problems.append("Ray starts processes itself: do not start this script with torchrun.")
        if options.has_several_objectives:
            problems.append(
                f"direction={options.directions}: Ray supports one objective. Pass one direction, "
                "or backend='optuna'."
            )
        if options.backend.get("scheduler") is not None and trainer.args.eval_strategy == "no":
            problems.append(
                "scheduler compares evaluations during a trial, and eval_strategy is 'no'. Set "
                "eval_strategy."
            )
        if problems:
            raise ValueError("\n".join(problems))

    def run(self, trainer: Trainer, search: SearchRun) -> BestRun:
        """Run all trials; `run_summary` of the result is the return value of `ray.tune.run`."""
        tune = import_module("ray.tune")
        assert trainer.hp_space is not None

        # Set defaults for options of `ray.tune.run` that the user did not pass.
        tune_options = dict(search.options.backend)
        scope = tune_options.pop("scope", "last")
        resources = {"cpu": 1}
        if trainer.args.n_gpu > 0:
            resources["gpu"] = 1
        tune_options.setdefault("resources_per_trial", resources)
        tune_options.setdefault("progress_reporter", tune.CLIReporter(metric_columns=["objective"]))

        trainable = tune.with_parameters(
            train_trial,
            portable_trainer=search.access.portable(trainer),
            revive=search.access.revive,
            options=search.options,
        )
        # -1 makes Ray sample values until the timeout.
        analysis = tune.run(
            trainable,
            config=trainer.hp_space(None),
            num_samples=search.options.n_trials or -1,
            **tune_options,
        )

        # Ray's modes are `min` and `max`.
        mode = search.options.directions[0][:3]
        best = analysis.get_best_trial(metric="objective", mode=mode, scope=scope)
        if best is None:
            raise ValueError("No trial completed: see the errors of the trials in Ray's output.")
        return BestRun(best.trial_id, best.last_result["objective"], dict(best.config), analysis)


def train_trial(
    config: dict[str, Any],
    portable_trainer: object,
    revive: Callable[[Any], tuple[Trainer, SearchOwner]],
    options: SearchOptions,
) -> None:
    """Train one trial in a Ray process.

    Args:
        config: the values of the trial.
        portable_trainer: the copy of the Trainer that `TrainerAccess.portable` returned.
        revive: restores the Trainer from that copy, see `TrainerAccess`.
        options: the options of the search.
    """
    tune = import_module("ray.tune")
    trainer, search_owner = revive(portable_trainer)
    search = SearchRun(trainer, options, search_owner.access)
    search_owner.current = search
    trial_id = str(tune.get_context().get_trial_id())
    search.ray_folder = folder_name(trainer.hp_name, dict(config), trial_id)
    trainer.objective = None

    # Resume if Ray restarts a trial, or copies the checkpoint of another one (population based
    # training).
    ray_checkpoint = tune.get_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray_checkpoint is not None:
            ray_checkpoint.to_directory(folder)
            checkpoint = str(next(Path(folder).glob("checkpoint-*")))
        trainer.train(resume_from_checkpoint=checkpoint, trial=dict(config))

    # If there was no evaluation during the training, evaluate at its end.
    if trainer.objective is None:
        metrics = trainer.evaluate()
        report(search, metrics, search.set_objective(metrics))


def report(search: SearchRun, metrics: dict[str, float], objective: float | list[float]) -> None:
    """Report an evaluation to Ray, with a checkpoint if one should be saved at this step.

    Args:
        search: the search whose Trainer evaluated.
        metrics: the metrics of the evaluation.
        objective: the objective, computed from the metrics.
    """
    tune = import_module("ray.tune")
    trainer = search.trainer
    reported = {**metrics, "objective": objective}
    if not trainer.control.should_save:
        tune.report(reported)
        return

    # Write the checkpoint into a temporary folder, because Ray copies it. Without a backend,
    # `_save_checkpoint` writes into `output_dir` itself instead of a trial's folder in it.
    with tempfile.TemporaryDirectory() as folder:
        output_dir = trainer.args.output_dir
        backend = trainer.hp_search_backend
        trainer.args.output_dir = folder
        trainer.hp_search_backend = None
        try:
            search.access.save_checkpoint(trainer)
        finally:
            trainer.args.output_dir = output_dir
            trainer.hp_search_backend = backend
        tune.report(reported, checkpoint=tune.Checkpoint.from_directory(folder))
