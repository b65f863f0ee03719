"""A training resumed with another step size is as long as requested."""

import pytest

from helpers.parity.harness import Case, run
from helpers.parity.parity_datasets import MeasuredStream, Stream, points
from helpers.parity.parity_models import Classifier

BATCH, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"

# Samples, arguments before the checkpoint and after it, step of the checkpoint, and max_steps.
CHANGED = {
    "half the batch": (16, {BATCH: 4}, {BATCH: 2}, 2, 8),
    "half the batch, over several epochs": (16, {BATCH: 4}, {BATCH: 2}, 6, 30),
    "a smaller batch, at the end of an epoch": (16, {BATCH: 4}, {BATCH: 3}, 4, 6),
    "no accumulation": (16, {BATCH: 4, ACCUMULATION: 2}, {BATCH: 4}, 1, 3),
    "no accumulation, an uneven epoch": (22, {BATCH: 4, ACCUMULATION: 4}, {BATCH: 3}, 3, 20),
    "twice the batch": (16, {BATCH: 2}, {BATCH: 4}, 5, 9),
    "more accumulation": (16, {BATCH: 4}, {BATCH: 4, ACCUMULATION: 3}, 3, 12),
    "the same samples in a step": (16, {BATCH: 4}, {BATCH: 2, ACCUMULATION: 2}, 3, 9),
}
DATA = {
    "samples": lambda count: points(count),
    "a stream": lambda count: Stream(points(count)),
    "a stream with a length": lambda count: MeasuredStream(points(count)),
}


def case(data: str, samples: int, **arguments) -> Case:
    return Case(Classifier, lambda: {"train_dataset": DATA[data](samples)}, arguments)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", CHANGED)
def test_max_steps_is_reached_as_in_the_reference(reference, ours, tmp_path, name, data):
    samples, before, after, step, max_steps = CHANGED[name]
    ended = {}
    for api in (reference, ours):
        folder = tmp_path / api.__name__
        begun = case(
            data, samples, **before, max_steps=step, save_strategy="steps", save_steps=step
        )
        run(api, begun, folder)
        changed = case(data, samples, **after, max_steps=max_steps)
        resumed = run(api, changed, folder, resume=str(folder / f"checkpoint-{step}"))
        ended[api.__name__] = resumed.output["global_step"], resumed.state["max_steps"]
    assert ended["lightrainer"] == ended["transformers"]
    assert ended["lightrainer"][0] == max_steps


@pytest.mark.parametrize("max_steps", [3, 4])
@pytest.mark.parametrize("data", DATA)
def test_resumed_length_of_a_finished_training_takes_no_step(ours, tmp_path, data, max_steps):
    """The reference takes one more."""
    run(ours, case(data, 16, max_steps=4, save_strategy="steps", save_steps=4), tmp_path)
    changed = case(data, 16, per_device_train_batch_size=2, max_steps=max_steps)
    resumed = run(ours, changed, tmp_path, resume=str(tmp_path / "checkpoint-4"))
    assert resumed.output["global_step"] == 4


BEFORES = [
    ({BATCH: 4}, {BATCH: 2}, 2, 2 + 4 + 8),
    ({BATCH: 4}, {BATCH: 2}, 6, 6 + 4),
    ({BATCH: 2}, {BATCH: 4}, 4, 4 + 2 + 4),
    ({BATCH: 4, ACCUMULATION: 2}, {BATCH: 4}, 1, 1 + 2 + 4),
    ({BATCH: 4}, {BATCH: 4, ACCUMULATION: 3}, 3, 3 + 1 + 2),
]


@pytest.mark.parametrize(("before", "after", "step", "steps"), BEFORES)
def test_resumed_length_completes_all_epochs(ours, tmp_path, before, after, step, steps):
    """With epochs given, the reference counts all steps in the present batch size."""
    run(ours, case("samples", 16, **before, save_strategy="steps", save_steps=step), tmp_path)
    resumed = run(
        ours, case("samples", 16, **after), tmp_path, resume=str(tmp_path / f"checkpoint-{step}")
    )
    assert resumed.output["global_step"] == resumed.state["max_steps"] == steps
    assert resumed.state["epoch"] == 2
    assert resumed.trainer.lr_scheduler.get_last_lr()[0] == 0


@pytest.mark.parametrize("length", [{"max_steps": 10}, {"num_train_epochs": 2}], ids=str)
@pytest.mark.parametrize("data", DATA)
def test_resumed_length_that_changed_may_be_interrupted_again(ours, tmp_path, data, length):
    """Checkpoints keep the changed number of steps."""
    if data != "samples" and "max_steps" not in length:
        length = {"max_steps": 14}
    begun = case(
        data, 16, per_device_train_batch_size=4, max_steps=2, save_strategy="steps", save_steps=2
    )
    run(ours, begun, tmp_path)
    changed = case(
        data, 16, per_device_train_batch_size=2, save_strategy="steps", save_steps=3, **length
    )
    whole = run(ours, changed, tmp_path, resume=str(tmp_path / "checkpoint-2"))
    again = run(ours, changed, tmp_path, resume=str(tmp_path / "checkpoint-6"))
    assert (
        again.output["global_step"]
        == whole.output["global_step"]
        == (10 if length == {"max_steps": 10} else 14)
    )
    assert again.history[:-1] == whole.history[:-1]


def test_epochs_that_a_callback_ends_early_add_no_steps(ours, tmp_path):
    """The samples of a step are the same, so nothing is to be made up for."""

    class EndsEarly(ours.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step % 2 == 0

    early = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}
    begun = case("samples", 16, **early).but(extras=lambda api: {"callbacks": [EndsEarly()]})
    whole = run(ours, begun, tmp_path)
    for changes in ({}, {BATCH: 2, ACCUMULATION: 2}):
        resumed = run(
            ours, begun.but(arguments=changes), tmp_path, resume=str(tmp_path / "checkpoint-3")
        )
        assert (resumed.output["global_step"], resumed.state["max_steps"]) == (
            6,
            whole.state["max_steps"],
        )


def test_intervals_of_a_checkpoint_precede_the_arguments(reference, ours, tmp_path):
    for api in (reference, ours):
        folder = tmp_path / api.__name__
        saving = {"save_strategy": "steps", "max_steps": 4}
        run(api, case("samples", 16, **saving, save_steps=2), folder)
        changed = case("samples", 16, **{**saving, "max_steps": 8}, save_steps=3)
        resumed = run(api, changed, folder, resume=str(folder / "checkpoint-4"))
        assert resumed.state["save_steps"] == 2
        assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
            f"checkpoint-{step}" for step in (2, 4, 6, 8)
        ]
