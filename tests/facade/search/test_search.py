"""`hyperparameter_search`: what it returns, what it leaves as it was, and what each trial begins
with.
"""

import copy
import functools
import gc
import json
import os
import pickle
import sys
import weakref
from functools import partial
from types import SimpleNamespace

import optuna
import pytest

from helpers.search.small_searches import random_sampler, searcher, space
from helpers.trainer.tiny_trainings import Tiny, same_bits, tiny, weights
from lightrainer import TimeLimitCallback, Trainer, TrainerCallback
from lightrainer.facade.arguments.enums import HPSearchBackend
from lightrainer.facade.search.hyperparameters import default_compute_objective
from lightrainer.facade.search.ray_backend import train_trial
from lightrainer.facade.search.search_run import SearchOptions
from lightrainer.facade.trainer.search_access import portable, revive
from lightrainer.lightning_modules.checkpoints import BackgroundWriter, last_intact_checkpoint


def test_search_restores_arguments_and_keeps_the_best_model(tmp_path):
    trainer = searcher(tmp_path, lr_scheduler_kwargs={"a": [1]}, lr_scheduler_type="constant")
    args, before = trainer.args, copy.deepcopy(vars(trainer.args))

    def wild(trial):
        trainer.args.lr_scheduler_kwargs["a"].append(2)
        batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
        return {**space(trial), **batches, "seed": trial.number}

    best = trainer.hyperparameter_search(wild, n_trials=3, sampler=random_sampler())
    assert trainer.args is args
    assert vars(trainer.args) == before
    assert trainer.evaluate()["eval_loss"] == best.objective
    assert trainer.train().global_step == 4
    assert not trainer.state.is_hyper_param_search


@pytest.mark.parametrize("final_model", ["best", "last"])
def test_search_trainer_holds_the_requested_model(tmp_path, final_model):
    trainer = searcher(tmp_path)
    options = {"sampler": random_sampler(2), "direction": "maximize", "final_model": final_model}
    best = trainer.hyperparameter_search(space, n_trials=3, **options)
    values = [trial.value for trial in trainer.study.trials]
    assert best.objective != values[-1]  # the best is not the last
    assert trainer.evaluate()["eval_loss"] == (
        values[-1] if final_model == "last" else best.objective
    )


def test_search_trial_runs_with_its_seed(tmp_path):
    trainer = searcher(tmp_path, model_init=lambda: Tiny())
    seeds = [5, 9, 5]
    values = []

    def seeded(trial):
        return {"learning_rate": 1e-2, "seed": seeds[trial.number]}

    trainer.hyperparameter_search(
        seeded, n_trials=3, callbacks=[lambda study, trial: values.append(trial.value)]
    )
    assert values[0] == values[2] != values[1]
    trainer.args.seed, trainer.args.learning_rate = 9, 1e-2
    trainer.train()
    assert trainer.evaluate()["eval_loss"] == values[1]


def test_search_in_a_shared_folder_leaves_other_trials_alone(tmp_path):
    for folders in ({"run-0"}, {"run-0", "run-0-2"}):
        trainer = searcher(tmp_path, save_strategy="steps", save_steps=4)
        trainer.hyperparameter_search(space, n_trials=1)
        assert {path.name for path in tmp_path.iterdir()} == folders
    rates = [
        json.loads(file.read_text())["trial_params"]
        for file in tmp_path.glob("run-*/checkpoint-4/trainer_state.json")
    ]
    assert len(rates) == 2
    assert rates[0] != rates[1]


def test_search_trials_have_names_and_folders(tmp_path):
    states = []

    class Names(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            states.append(
                (
                    state.is_hyper_param_search,
                    state.trial_name,
                    state.trial_params["learning_rate"],
                )
            )

    trainer = searcher(
        tmp_path, callbacks=[Names()], save_strategy="steps", save_steps=4, save_only_model=True
    )
    for hp_name in (None, lambda trial: f"lr{trial.params['learning_rate']}"):
        trainer.hyperparameter_search(
            lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.1, 0.1)},
            n_trials=2,
            hp_name=hp_name,
        )
    # Equal values would have given two trials one folder.
    assert states == [(True, name, 0.1) for name in ("run-0", "run-1", "lr0.1", "lr0.1-2")]
    assert {path.name for path in tmp_path.iterdir()} == {"run-0", "run-1", "lr0.1", "lr0.1-2"}


def test_overrides_of_the_steps_are_called(tmp_path):
    calls = []

    class Mine(Trainer):
        def _hp_search_setup(self, trial):
            super()._hp_search_setup(trial)
            calls.append(("setup", trial and trial.number, self.args.learning_rate))

        def _report_to_hp_search(self, trial, step, metrics):
            super()._report_to_hp_search(trial, step, metrics)
            calls.append(("report", trial and trial.number, step))

    trainer = searcher(tmp_path, cls=Mine)
    trainer.hyperparameter_search(lambda trial: {"learning_rate": 0.5}, n_trials=1)
    trainer.train()
    assert calls == [
        *[("setup", 0, 0.5), ("report", 0, 2), ("report", 0, 4)],
        *[("setup", None, 0.01), ("report", None, 2), ("report", None, 4)],
    ]


def test_memory_does_not_grow_from_trial_to_trial(tmp_path):
    models, alive, objects = [], [], {}

    def model():
        instance = tiny()
        models.append(weakref.ref(instance))
        return instance

    def count(study, trial):
        alive.append(sum(reference() is not None for reference in models))
        objects[trial.number] = len(gc.get_objects()) if trial.number in (5, 10) else 0

    trainer = searcher(tmp_path, model_init=model)
    trainer.hyperparameter_search(
        space, n_trials=11, sampler=random_sampler(), callbacks=[count], gc_after_trial=True
    )
    assert len(models) == 12
    assert max(alive) <= 2  # the last one, and the best so far
    assert objects[10] - objects[5] < 5 * 150  # what optuna keeps of a trial


def test_search_caught_failure_fails_the_trial(tmp_path):
    trainer = searcher(tmp_path)

    def fragile(trial):
        if trial.number == 1:
            raise ArithmeticError("no such luck")
        return space(trial)

    best = trainer.hyperparameter_search(fragile, n_trials=3, catch=ArithmeticError)
    assert [trial.state.name for trial in trainer.study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert trainer.evaluate()["eval_loss"] == best.objective
    with pytest.raises(ArithmeticError):
        trainer.hyperparameter_search(fragile, n_trials=3)
    assert isinstance(trainer.model, Tiny)  # of the best trial before it
    assert trainer.args.learning_rate == 1e-2


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("final_model", ["best", "last"])
def test_search_with_catch_continues_after_model_init_failed(tmp_path, failing, final_model):
    def make(trial=None):
        if trial is not None and trial.number == failing:
            raise ArithmeticError("too large")
        return tiny()

    trainer = searcher(tmp_path, model_init=make)
    best = trainer.hyperparameter_search(
        space, n_trials=3, catch=ArithmeticError, final_model=final_model
    )
    expected = ["COMPLETE"] * 3
    expected[failing] = "FAIL"
    assert [trial.state.name for trial in trainer.study.trials] == expected
    assert isinstance(trainer.model, Tiny)
    if final_model != "last":
        assert trainer.evaluate()["eval_loss"] == best.objective


def test_options_of_the_study(tmp_path):
    options = {"study_name": "mine", "storage": f"sqlite:///{tmp_path / 'study.db'}"}
    trainer = searcher(tmp_path / "out")
    trainer.hyperparameter_search(space, n_trials=2, sampler=random_sampler(), **options)
    with pytest.raises(optuna.exceptions.DuplicatedStudyError, match="load_if_exists"):
        trainer.hyperparameter_search(space, n_trials=2, **options)
    again = searcher(tmp_path / "out")
    options["load_if_exists"] = True
    more = again.hyperparameter_search(space, n_trials=1, sampler=random_sampler(1), **options)
    assert len(again.study.trials) == 3
    for name, value in more.hyperparameters.items():
        setattr(again.args, name, value)
    again.train()
    assert again.evaluate()["eval_loss"] == more.objective
    with pytest.raises(ValueError, match="has direction="):
        trainer.hyperparameter_search(space, n_trials=1, direction="maximize", **options)


def test_search_ignores_checkpoints_of_an_older_search(tmp_path, caplog):
    """Folders have numbers, and a number says nothing of the study."""
    saving = {"save_strategy": "steps", "save_steps": 4}
    searcher(tmp_path, **saving).hyperparameter_search(space, n_trials=1, sampler=random_sampler(7))
    assert (tmp_path / "run-0" / "checkpoint-4").is_dir()
    keywords = {"study_name": "mine", "storage": f"sqlite:///{tmp_path / 'study.db'}"}
    distributions = {"learning_rate": optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True)}
    added = optuna.create_trial(
        params={"learning_rate": 0.05}, distributions=distributions, value=-1.0
    )
    optuna.create_study(**keywords).add_trial(added)
    trainer = searcher(tmp_path, **saving)
    best = trainer.hyperparameter_search(
        space, n_trials=1, sampler=random_sampler(1), load_if_exists=True, **keywords
    )
    assert best.run_id == "0"
    assert "trial 0, was not trained by this process and has no checkpoint here" in caplog.text
    # that of the last trial
    assert trainer.evaluate()["eval_loss"] == trainer.study.trials[1].value


def test_workers_side_by_side(tmp_path):
    """Each in a separate process, on one study; the result is what one worker finds with the
    same values.
    """
    trainer = searcher(tmp_path, save_strategy="steps", save_steps=4, save_only_model=True)

    def found(n_jobs):
        sampler = optuna.samplers.GridSampler({"learning_rate": [1e-3, 1e-2, 1e-1]}, seed=0)
        best = trainer.hyperparameter_search(space, n_trials=3, sampler=sampler, n_jobs=n_jobs)
        # read from the folder that a worker left
        assert trainer.evaluate()["eval_loss"] == best.objective
        assert len(trainer.study.trials) == 3
        return {(trial.params["learning_rate"], trial.value) for trial in trainer.study.trials}

    assert found(2) <= found(1)  # two workers may try one point of the grid


def test_search_failed_worker_ends_the_search(tmp_path):
    def fragile(trial):
        raise ArithmeticError("in a worker")

    with pytest.raises(ArithmeticError, match="in a worker"):
        searcher(tmp_path).hyperparameter_search(fragile, n_trials=4, n_jobs=2)


def test_search_with_a_trained_trainer_in_another_process(tmp_path):
    """As Ray sends it, which is not installed; what is left behind is made again there."""
    options = {"callbacks": [TimeLimitCallback(7200)], "enable_jit_checkpoint": True}
    trainer = searcher(tmp_path, model_init=partial(tiny, 3), **options)
    trainer.train()
    again, _ = revive(pickle.loads(pickle.dumps(portable(trainer))))
    kinds = [
        [type(callback).__name__ for callback in each.callback_handler.callbacks]
        for each in (trainer, again)
    ]
    assert kinds[1] == [name for name in kinds[0] if name != "JITCheckpointCallback"] != kinds[0]
    again.train()
    assert same_bits(weights(again.model), weights(trainer.model))


def test_search_reports_complete_checkpoints_to_ray(tmp_path, monkeypatch):
    """Ray, which is not installed, copies the folder at once."""
    reported = []

    def report(metrics, checkpoint=None):
        reported.append(last_intact_checkpoint(checkpoint))

    tune = SimpleNamespace(
        report=report,
        get_checkpoint=lambda: None,
        get_context=lambda: SimpleNamespace(get_trial_id=lambda: "5"),
        Checkpoint=SimpleNamespace(from_directory=str),
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    monkeypatch.setitem(sys.modules, "ray.tune", tune)

    # The thread writes a checkpoint as late as possible: when the Trainer waits for it.
    def submit(self, job):
        return SimpleNamespace(result=functools.cache(job), done=lambda: False)

    monkeypatch.setattr(BackgroundWriter, "submit", submit)
    trainer = searcher(tmp_path, save_strategy="steps", save_steps=2)
    trainer.compute_objective = default_compute_objective
    trainer.hp_space = trainer.hp_name = None
    trainer.hp_search_backend = HPSearchBackend.RAY
    options = SearchOptions(n_trials=1, directions=["minimize"])
    train_trial({"learning_rate": 1e-2}, portable(trainer), revive, options)
    assert [os.path.basename(path) for path in reported] == ["checkpoint-2", "checkpoint-4"]


def test_search_default_space_and_names_that_are_not_arguments(tmp_path, caplog):
    trainer = searcher(tmp_path)
    best = trainer.hyperparameter_search(n_trials=1, sampler=random_sampler())
    assert list(best.hyperparameters) == [
        "learning_rate",
        "num_train_epochs",
        "seed",
        "per_device_train_batch_size",
    ]
    trainer.hyperparameter_search(lambda trial: {"lerning_rate": 1.0}, n_trials=1)
    assert (
        "'lerning_rate', which is not a training argument. Did you mean 'learning_rate'?"
        in caplog.text
    )
