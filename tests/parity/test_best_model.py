"""The best checkpoint, its retention, and its state after a resumption equal the reference."""

import json
import logging
from pathlib import Path

import pytest
from comparison import differences
from datasets_for_parity import point_data, points
from harness import Case, assert_parity, assert_same, checkpoint_state, run
from interrupted_runs import folders, interrupted
from models import Classifier
from safetensors.torch import load_file

BY_STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}
BEST = {"load_best_model_at_end": True, "learning_rate": 0.2, "num_train_epochs": 3}

ARRANGEMENTS = {
    "saved at every second evaluation": {**BY_STEPS, "eval_steps": 1, "save_steps": 2, **BEST},
    "saved at every third, worst is best": {
        **BY_STEPS,
        "eval_steps": 2,
        "save_steps": 6,
        **BEST,
        "greater_is_better": True,
    },
    "at most 1, saved at every second": {**BY_STEPS, "eval_steps": 1, "save_steps": 2, **BEST, "save_total_limit": 1},
    "at most 2, saved at every second": {**BY_STEPS, "eval_steps": 1, "save_steps": 2, **BEST, "save_total_limit": 2},
    "shares of the training": {**BY_STEPS, "eval_steps": 0.1, "save_steps": 0.2, **BEST},
    "of no common measure, not loaded": {
        **BY_STEPS,
        "eval_steps": 2,
        "save_steps": 3,
        **BEST,
        "load_best_model_at_end": False,
        "metric_for_best_model": "loss",
        "save_total_limit": 2,
    },
    "evaluated by steps, saved by epochs, not loaded": {
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "epoch",
        **BEST,
        "load_best_model_at_end": False,
        "metric_for_best_model": "eval_loss",
        "save_total_limit": 1,
    },
    "best, evaluated by epochs": {"eval_strategy": "epoch", "save_strategy": "best", **BEST},
    "best, at most 1": {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "best",
        **BEST,
        "save_total_limit": 1,
    },
    "only the model": {**BY_STEPS, "eval_steps": 2, "save_steps": 2, **BEST, "save_only_model": True},
    "evaluated late": {**BY_STEPS, "eval_steps": 2, "save_steps": 2, **BEST, "eval_delay": 5},
    "evaluated at the start too": {**BY_STEPS, "eval_steps": 2, "save_steps": 2, **BEST, "eval_on_start": True},
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_saving_and_evaluating_need_not_line_up(reference, ours, tmp_path, name):
    """The same checkpoint is the best one, the same ones are kept, and the same weights are there at the end."""
    expected, actual = assert_parity(reference, ours, Case(Classifier, point_data, ARRANGEMENTS[name]), tmp_path)
    assert folders(expected) == folders(actual)
    for folder in folders(expected):
        assert not differences(checkpoint_state(expected.folder / folder), checkpoint_state(actual.folder / folder))
    assert actual.state["best_metric"] is not None


def two_datasets():
    return {**point_data(), "eval_dataset": {"first": points(10, seed=11), "second": points(9, seed=12)}}


@pytest.mark.parametrize("metric", ["first_loss", "second_loss", "eval_second_loss"])
@pytest.mark.parametrize("strategy", ["steps", "epoch", "best"])
def test_the_metric_of_any_dataset(reference, ours, tmp_path, metric, strategy):
    evaluated = {"eval_strategy": "epoch" if strategy == "epoch" else "steps", "eval_steps": 2, "save_steps": 2}
    arguments = {**evaluated, **BEST, "save_strategy": strategy, "metric_for_best_model": metric}
    expected, actual = assert_parity(reference, ours, Case(Classifier, two_datasets, arguments), tmp_path)
    assert folders(expected) == folders(actual)
    name = f"eval_{metric.removeprefix('eval_')}"
    values = [entry[name] for entry in actual.history if name in entry]
    assert actual.state["best_metric"] == min(values)
    assert len(values) > 2


@pytest.mark.parametrize("metric", ["loss", "third_loss"])
def test_a_metric_that_no_dataset_has(reference, ours, tmp_path, metric):
    """The error is of the same kind, and names the metrics that exist."""
    arguments = {**BY_STEPS, "eval_steps": 2, "save_steps": 2, **BEST, "metric_for_best_model": metric}
    for api in (reference, ours):
        with pytest.raises(KeyError, match=r"eval_first_loss.*eval_second_loss"):
            run(api, Case(Classifier, two_datasets, arguments), tmp_path / api.__name__)


def test_the_best_of_before_the_interruption_is_still_the_best(reference, ours, tmp_path):
    """The best checkpoint of an earlier process is kept, and loaded at the end."""
    goodness = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5]
    arguments = {**BY_STEPS, "eval_steps": 2, "save_steps": 2, **BEST, "num_train_epochs": 2, "save_total_limit": 2}
    runs = []
    for api, name in ((reference, "theirs"), (ours, "ours")):
        values = iter(goodness)
        compute = lambda prediction, values=values: {"good": next(values)}
        case = Case(
            Classifier,
            point_data,
            {**arguments, "metric_for_best_model": "good"},
            extras=lambda api, compute=compute: {"compute_metrics": compute},
        )
        interrupted(api, case, 8, tmp_path / name)
        assert folders_in(tmp_path / name) == ["checkpoint-4", "checkpoint-8"]
        runs.append(run(api, case.but(model_seed=99), tmp_path / name, resume=str(tmp_path / name / "checkpoint-8")))
        stored = load_file(tmp_path / name / "checkpoint-4" / "model.safetensors")
        assert not differences(stored, runs[-1].weights)
        runs[-1].history[-1].pop("train_loss")  # which part of the training it is the mean of is another matter
    assert_same(*runs, ignoring=("output",))
    assert folders(runs[0]) == folders(runs[1]) == ["checkpoint-12", "checkpoint-4"]


def folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_best_step_that_was_not_saved_is_said(ours, tmp_path, caplog):
    """As in the reference the last weights stay, but not in silence."""
    values = iter([0.9, 0.1, 0.2, 0.1, 0.1, 0.1])
    arguments = {**BY_STEPS, "eval_steps": 2, "save_steps": 4, **BEST, "num_train_epochs": 2}
    case = Case(
        Classifier,
        point_data,
        {**arguments, "metric_for_best_model": "good"},
        extras=lambda api: {"compute_metrics": lambda prediction: {"good": next(values)}},
    )
    with caplog.at_level(logging.WARNING):
        made = run(ours, case, tmp_path)
    assert (made.state["best_global_step"], made.state["best_model_checkpoint"]) == (2, None)
    assert not differences(made.weights, load_file(tmp_path / "checkpoint-12" / "model.safetensors"))
    assert "step 2" in caplog.text
    assert "no checkpoint" in caplog.text


# --- the state, and callbacks that have one


def test_the_state_goes_through_json_and_through_the_other_library(reference, ours, tmp_path):
    """Written by one, read and written by the other: the same bytes, also of a NaN, and the same values."""
    made = run(ours, Case(Classifier, point_data, {"max_steps": 3}), tmp_path / "run").trainer
    made.save_state()
    first = tmp_path / "run" / "trainer_state.json"
    for api, target in ((reference, tmp_path / "theirs.json"), (ours, tmp_path / "ours.json")):
        api.TrainerState.load_from_json(str(first)).save_to_json(str(target))
        assert target.read_bytes() == first.read_bytes()
    theirs = reference.TrainerState(log_history=[{"loss": float("nan"), "step": 1}], best_metric=0.5, epoch=1.5)
    theirs.save_to_json(str(tmp_path / "nan.json"))
    ours.TrainerState.load_from_json(str(tmp_path / "nan.json")).save_to_json(str(tmp_path / "again.json"))
    assert (tmp_path / "nan.json").read_bytes() == (tmp_path / "again.json").read_bytes()


def counter(api):
    """A callback whose progress belongs into the checkpoint; there are two of it, with other steps."""

    class Counter(api.TrainerCallback, api.trainer_callback.ExportableState):
        def __init__(self, stride=1):
            self.stride = stride
            self.total = 0

        def on_step_end(self, args, state, control, **kwargs):
            self.total += self.stride

        def state(self):
            return {"args": {"stride": self.stride}, "attributes": {"total": self.total}}

    return Counter


@pytest.mark.parametrize("restore", [True, False])
@pytest.mark.parametrize("copies", [1, 2])
def test_callbacks_with_a_state(reference, ours, tmp_path, restore, copies):
    """Restored where it is asked for, by class and in their order; the switches of the control too."""
    found = {}
    for api, names in ((reference, reference), (ours, _with_callbacks(ours))):
        kind = counter(names)
        given = [kind(stride) for stride in (1, 10)[:copies]]
        extras = {"callbacks": given}
        arguments = {"restore_callback_states_from_checkpoint": restore}
        case = Case(Classifier, point_data, arguments, extras=lambda api, extras=extras: dict(extras))
        folder = tmp_path / api.__name__
        interrupted(api, case, 4, folder)
        stored = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["stateful_callbacks"]
        extras["callbacks"] = [kind(stride) for stride in (1, 10)[:copies]]
        resumed = run(api, case, folder, resume=True)
        present = resumed.trainer.callback_handler.callbacks
        totals = sorted(one.total for one in present if type(one).__name__ == "Counter")
        found[api.__name__] = (stored, totals)
    (_, theirs), (_, mine) = found.values()
    assert mine == sorted([12, 120][:copies] if restore else [8, 80][:copies])
    if copies == 1:  # of several the reference appends states with every save, to those that were there at the start
        assert found["transformers"] == found["lightrainer"]
    else:
        assert theirs != mine or not restore


def _with_callbacks(ours):
    """The library's names where the reference has a module for them."""
    ours_names = type("Names", (), {})
    ours_names.TrainerCallback, ours_names.trainer_callback = ours.TrainerCallback, ours
    return ours_names
