"""The best checkpoint, its retention, and its state after a resumption equal the reference."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_parity, assert_same, run
from helpers.parity.interrupted_runs import assert_same_checkpoint, folders, interrupted
from helpers.parity.parity_datasets import point_data, points
from helpers.parity.parity_models import Classifier

BY_STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}
BEST = {"load_best_model_at_end": True, "learning_rate": 0.2, "num_train_epochs": 3}

NOT_LOADED = {"load_best_model_at_end": False, "metric_for_best_model": "loss"}


def by_steps(evaluated, saved, **more):
    return {**BY_STEPS, "eval_steps": evaluated, "save_steps": saved, **BEST, **more}


ARRANGEMENTS = {
    "saved at every second evaluation": by_steps(1, 2),
    "saved at every third, worst is best": by_steps(2, 6, greater_is_better=True),
    "at most 1, saved at every second": by_steps(1, 2, save_total_limit=1),
    "shares of the training": by_steps(0.1, 0.2),
    "of no common measure, not loaded": by_steps(2, 3, save_total_limit=2, **NOT_LOADED),
    "saved by epochs, not loaded": by_steps(
        3, 2, save_total_limit=1, save_strategy="epoch", **NOT_LOADED
    ),
    "by epochs": {"eval_strategy": "epoch", "save_strategy": "epoch", **BEST},
    "best, evaluated by epochs": {"eval_strategy": "epoch", "save_strategy": "best", **BEST},
    "best, at most 1": by_steps(2, 2, save_strategy="best", save_total_limit=1),
    "only the model": by_steps(2, 2, save_only_model=True),
    "evaluated at the start too, with accumulation": by_steps(
        2, 2, eval_on_start=True, gradient_accumulation_steps=2
    ),
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_saving_and_evaluating_need_not_line_up(reference, ours, tmp_path, name):
    """The same checkpoint is the best one, the same ones are kept, and the same weights are
    there at the end.
    """
    expected, actual = assert_parity(
        reference, ours, Case(Classifier, point_data, ARRANGEMENTS[name]), tmp_path
    )
    assert folders(expected) == folders(actual)
    for folder in folders(expected):
        assert_same_checkpoint(expected.folder / folder, actual.folder / folder)
    assert actual.state["best_metric"] is not None


def two_datasets():
    return {
        **point_data(),
        "eval_dataset": {"first": points(10, seed=11), "second": points(9, seed=12)},
    }


@pytest.mark.parametrize("metric", ["first_loss", "second_loss", "eval_second_loss"])
@pytest.mark.parametrize("strategy", ["steps", "epoch", "best"])
def test_best_model_by_the_metric_of_any_dataset(reference, ours, tmp_path, metric, strategy):
    evaluated = {
        "eval_strategy": "epoch" if strategy == "epoch" else "steps",
        "eval_steps": 2,
        "save_steps": 2,
    }
    arguments = {**evaluated, **BEST, "save_strategy": strategy, "metric_for_best_model": metric}
    expected, actual = assert_parity(
        reference, ours, Case(Classifier, two_datasets, arguments), tmp_path
    )
    assert folders(expected) == folders(actual)
    name = f"eval_{metric.removeprefix('eval_')}"
    values = [entry[name] for entry in actual.history if name in entry]
    assert actual.state["best_metric"] == min(values)
    assert len(values) > 2


@pytest.mark.parametrize("metric", ["loss", "third_loss"])
def test_best_model_by_a_metric_of_no_dataset(reference, ours, tmp_path, metric):
    """The error is of the same kind, and names the metrics that exist."""
    arguments = by_steps(2, 2, metric_for_best_model=metric)
    for api in (reference, ours):
        with pytest.raises(KeyError, match=r"eval_first_loss.*eval_second_loss"):
            run(api, Case(Classifier, two_datasets, arguments), tmp_path / api.__name__)


def test_best_model_from_before_an_interruption_is_kept(reference, ours, tmp_path):
    """The best checkpoint of an earlier process is kept, and loaded at the end."""
    goodness = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5]
    arguments = by_steps(2, 2, num_train_epochs=2, save_total_limit=2, metric_for_best_model="good")
    runs = []
    for api, name in ((reference, "theirs"), (ours, "ours")):
        values = iter(goodness)
        compute = lambda prediction, values=values: {"good": next(values)}
        case = Case(
            Classifier,
            point_data,
            arguments,
            extras=lambda api, compute=compute: {"compute_metrics": compute},
        )
        interrupted(api, case, 8, tmp_path / name)
        assert folders_in(tmp_path / name) == ["checkpoint-4", "checkpoint-8"]
        runs.append(
            run(
                api,
                case.but(model_seed=99),
                tmp_path / name,
                resume=str(tmp_path / name / "checkpoint-8"),
            )
        )
        stored = load_file(tmp_path / name / "checkpoint-4" / "model.safetensors")
        assert not differences(stored, runs[-1].weights)
        # which part of the training it is the mean of is another matter
        runs[-1].history[-1].pop("train_loss")
    assert_same(*runs, ignoring=("output",))
    assert folders(runs[0]) == folders(runs[1]) == ["checkpoint-12", "checkpoint-4"]


def folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_best_model_saved_before_a_better_evaluation_is_loaded(reference, ours, tmp_path, caplog):
    """Not the better one of a later checkpoint, which was no best evaluation."""
    loaded = {}
    for api in (reference, ours):
        values = iter([0.1, 0.5, 0.9, 0.7, 0.1, 0.1])
        case = Case(
            Classifier,
            point_data,
            by_steps(2, 4, num_train_epochs=2, metric_for_best_model="good"),
            extras=lambda api, values=values: {
                "compute_metrics": lambda prediction: {"good": next(values)}
            },
        )
        result = run(api, case, tmp_path / api.__name__)
        assert (result.state["best_global_step"], result.state["best_metric"]) == (6, 0.9)
        assert result.state["best_model_checkpoint"] == "checkpoint-4"
        saved = load_file(result.folder / "checkpoint-4" / "model.safetensors")
        assert not differences(result.weights, saved)
        loaded[api.__name__] = result.weights
    assert not differences(loaded["transformers"], loaded["lightrainer"])
    assert "step 6" in caplog.text


def test_best_step_that_was_not_saved_warns(ours, tmp_path, caplog):
    """As in the reference the last weights stay, but not in silence."""
    values = iter([0.9, 0.1, 0.2, 0.1, 0.1, 0.1])
    case = Case(
        Classifier,
        point_data,
        by_steps(2, 4, num_train_epochs=2, metric_for_best_model="good"),
        extras=lambda api: {"compute_metrics": lambda prediction: {"good": next(values)}},
    )
    result = run(ours, case, tmp_path)
    assert (result.state["best_global_step"], result.state["best_model_checkpoint"]) == (2, None)
    assert not differences(
        result.weights, load_file(tmp_path / "checkpoint-12" / "model.safetensors")
    )
    assert "step 2" in caplog.text
    assert "no checkpoint" in caplog.text


# --- the state, and callbacks that have one


def test_trainer_state_survives_json_and_the_other_library(reference, ours, tmp_path):
    """Written by one, read and written by the other: the same bytes, also of a NaN, and the same
    values.
    """
    trained = run(ours, Case(Classifier, point_data, {"max_steps": 3}), tmp_path / "run").trainer
    trained.save_state()
    first = tmp_path / "run" / "trainer_state.json"
    for api, target in ((reference, tmp_path / "theirs.json"), (ours, tmp_path / "ours.json")):
        api.TrainerState.load_from_json(str(first)).save_to_json(str(target))
        assert target.read_bytes() == first.read_bytes()
    theirs = reference.TrainerState(
        log_history=[{"loss": float("nan"), "step": 1}], best_metric=0.5, epoch=1.5
    )
    theirs.save_to_json(str(tmp_path / "nan.json"))
    ours.TrainerState.load_from_json(str(tmp_path / "nan.json")).save_to_json(
        str(tmp_path / "again.json")
    )
    assert (tmp_path / "nan.json").read_bytes() == (tmp_path / "again.json").read_bytes()


def test_callbacks_of_one_class_restore_their_states_in_order(ours, tmp_path):
    """The reference appends states with every save; argument_effects.py compares a single one."""

    class Counter(ours.TrainerCallback, ours.ExportableState):
        def __init__(self, stride=1):
            self.stride, self.total = stride, 0

        def on_step_end(self, args, state, control, **kwargs):
            self.total += self.stride

        def state(self):
            return {"args": {"stride": self.stride}, "attributes": {"total": self.total}}

    arguments = {"restore_callback_states_from_checkpoint": True}
    case = Case(
        Classifier, point_data, arguments, lambda api: {"callbacks": [Counter(1), Counter(10)]}
    )
    interrupted(ours, case, 4, tmp_path)
    present = run(ours, case, tmp_path, resume=True).trainer.callback_handler.callbacks
    assert [callback.total for callback in present if isinstance(callback, Counter)] == [12, 120]


@pytest.mark.parametrize("part", ["args", "attributes"])
def test_callback_state_with_one_part_is_restored(reference, ours, tmp_path, part):
    """`state()` of many callbacks returns only the arguments, or only the attributes."""

    def restored_value(api):
        class Setting(api.TrainerCallback, getattr(api, "trainer_callback", api).ExportableState):
            def __init__(self, value=1):
                self.value = value

            def state(self):
                return {part: {"value": self.value}}

        folder = tmp_path / api.__name__
        settings = {"restore_callback_states_from_checkpoint": True}
        for_saving = Case(Classifier, point_data, settings, lambda api: {"callbacks": [Setting(5)]})
        interrupted(api, for_saving, 4, folder)
        for_loading = Case(Classifier, point_data, settings, lambda api: {"callbacks": [Setting()]})
        present = run(api, for_loading, folder, resume=True).trainer.callback_handler.callbacks
        return [callback.value for callback in present if type(callback).__name__ == "Setting"]

    assert restored_value(reference) == [5]
    assert restored_value(ours) == [5]
