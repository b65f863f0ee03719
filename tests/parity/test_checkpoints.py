"""Checkpoints: the same folders at the same times, resumed to the same bits, and exchanged with
the reference.
"""

import functools
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, Run, assert_parity, assert_same, run
from helpers.parity.interrupted_runs import assert_same_checkpoint, folders, interrupted
from helpers.parity.parity_datasets import Stream, point_data, sentence_data, sentences
from helpers.parity.parity_models import Classifier, TokenModel, gpt2

STRATEGIES = {
    "steps": {"save_strategy": "steps", "save_steps": 2},
    "share of the training": {"save_strategy": "steps", "save_steps": 0.25},
    "epoch": {"save_strategy": "epoch"},
    "steps, at most 2": {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2},
    "steps, at most 1": {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1},
    "model only": {"save_strategy": "epoch", "save_only_model": True},
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_checkpoints_save_intervals(reference, ours, tmp_path, name, accumulation):
    """The same folders are there at the end, with the same weights and the same
    `trainer_state.json`.
    """
    arguments = {**STRATEGIES[name], "gradient_accumulation_steps": accumulation}
    expected, actual = assert_parity(
        reference, ours, Case(Classifier, point_data, arguments), tmp_path
    )
    assert folders(expected) == folders(actual)
    assert any(folder.startswith("checkpoint-") for folder in folders(expected))
    for folder in folders(expected):
        assert_same_checkpoint(expected.folder / folder, actual.folder / folder)


EACH_STEP = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
}


def test_early_stopping_with_the_best_strategy(reference, ours, tmp_path):
    """Saves only what is better than all before, stops when nothing gets better, and ends with
    the best weights.
    """
    case = Case(
        Classifier,
        point_data,
        {**EACH_STEP, "save_strategy": "best", "num_train_epochs": 10},
        extras=lambda api: {"callbacks": [api.EarlyStoppingCallback(3)]},
    )
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    assert folders(expected) == folders(actual)
    assert 0 < actual.state["global_step"] < 60
    assert 0 < actual.state["best_global_step"] < actual.state["global_step"]
    best = actual.folder / actual.state["best_model_checkpoint"]
    assert not differences(actual.weights, load_file(best / "model.safetensors"))


def stream_data():
    return {**sentence_data(), "train_dataset": Stream(sentences(60))}


# 22 samples are 6 batches: an epoch has 6, 3 or 2 steps with windows of 1, 2 or 4. Step 3 (of 12)
# is in mid-epoch, step 6 the end of an epoch, step 8 in mid-epoch of the second.
INTERRUPTED = {
    "plain module": (Case(Classifier, point_data), (1, 3, 6, 8)),
    # A checkpoint of an epoch's last step is older than that epoch's end, which a resumed run does
    # not repeat: step 6 would lack one evaluation, here as in the reference.
    "evaluation at the end of the epochs": (
        Case(Classifier, point_data, {"eval_strategy": "epoch"}),
        (1, 3, 8),
    ),
    "gpt2": (
        Case(gpt2, sentence_data, {"lr_scheduler_type": "cosine", "warmup_steps": 2}),
        (3, 6, 8),
    ),
    "windows of 2": (
        Case(gpt2, sentence_data, {"gradient_accumulation_steps": 2, "num_train_epochs": 3}),
        (2, 3, 5),
    ),
    "windows with a remainder": (
        Case(TokenModel, sentence_data, {"gradient_accumulation_steps": 4, "num_train_epochs": 3}),
        (1, 2, 3),
    ),
    "evaluation in between": (
        Case(gpt2, sentence_data, {"eval_strategy": "steps", "eval_steps": 2}),
        (3, 4, 8),
    ),
    "group by length": (
        Case(gpt2, sentence_data, {"train_sampling_strategy": "group_by_length"}),
        (6,),
    ),
    "stream": (Case(TokenModel, stream_data, {"max_steps": 10}), (4,)),
}
POINTS = [(name, step) for name, (_, steps) in INTERRUPTED.items() for step in steps]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(api, name)` is a case from the first step to the last, or up to a checkpoint;
    each is run once.
    """

    @functools.cache
    def get(api, name: str, stop: int | None = None) -> Run:
        case, folder = INTERRUPTED[name][0], tmp_path_factory.mktemp("trained")
        return interrupted(api, case, stop, folder) if stop else run(api, case, folder)

    return get


@pytest.fixture(scope="module")
def resumed(trained, tmp_path_factory):
    """`resumed(api, name, step)` resumes from there, with other initial weights and random
    numbers; each is run once.
    """

    @functools.cache
    def get(api, name: str, step: int) -> Run:
        folder = tmp_path_factory.mktemp("resumed")
        shutil.copytree(trained(api, name, step).folder, folder, dirs_exist_ok=True)
        torch.rand(13)
        return run(api, INTERRUPTED[name][0].but(model_seed=99), folder, resume=True)

    return get


def without_mean_loss(run: Run) -> Run:
    """The logged loss is the mean of the steps since a resumption."""
    *steps, last = run.history
    return replace(
        run,
        history=[*steps, {name: value for name, value in last.items() if name != "train_loss"}],
    )


@pytest.mark.parametrize(("name", "step"), POINTS)
def test_checkpoints_resumption_is_exact(ours, trained, resumed, name, step):
    """Dropout on; only the mean loss is not the same."""
    runs = map(without_mean_loss, (trained(ours, name), resumed(ours, name, step)))
    assert_same(*runs, ignoring=("output", "trainer"))


@pytest.mark.parametrize(("name", "step"), POINTS)
def test_resuming_gives_what_the_reference_gives(reference, ours, resumed, name, step):
    """Also the mean loss and the number of samples."""
    assert_same(resumed(reference, name, step), resumed(ours, name, step))


@pytest.mark.parametrize(("name", "step"), POINTS)
@pytest.mark.parametrize("direction", ["theirs resumed by ours", "ours resumed by theirs"])
def test_checkpoints_are_exchanged(reference, ours, trained, tmp_path, name, step, direction):
    """A checkpoint of one library is resumed by the other to the bits of the reference's
    uninterrupted run.
    """
    first, second = (reference, ours) if direction.startswith("theirs") else (ours, reference)
    checkpoint = str(trained(first, name, step).folder / f"checkpoint-{step}")
    went_on = run(second, INTERRUPTED[name][0].but(model_seed=99), tmp_path, resume=checkpoint)
    runs = map(without_mean_loss, (trained(reference, name), went_on))
    assert_same(*runs, ignoring=("output", "trainer"))


def test_early_stopping_remembers_over_a_resumption(reference, ours, tmp_path):
    """The counter of the early stopping is in the checkpoint, and restored when asked."""
    arguments = {
        **EACH_STEP,
        "save_strategy": "steps",
        "save_steps": 1,
        "learning_rate": 0.3,
        "num_train_epochs": 10,
    }
    arguments["restore_callback_states_from_checkpoint"] = True
    runs = []
    for api, folder in ((reference, tmp_path / "reference"), (ours, tmp_path / "ours")):
        extras = {"callbacks": [api.EarlyStoppingCallback(3)]}
        case = Case(
            Classifier, point_data, arguments, extras=lambda api, extras=extras: dict(extras)
        )
        interrupted(api, case, 4, folder)
        extras["callbacks"] = [api.EarlyStoppingCallback(3)]
        runs.append(run(api, case, folder, resume=True))
    assert_same(*runs)


def test_checkpoints_models_are_read_by_the_other(reference, ours, tmp_path):
    """`save_model` writes what `from_pretrained` of the reference reads."""
    from transformers import GPT2LMHeadModel

    trained = run(ours, Case(gpt2, sentence_data, {"max_steps": 2}), tmp_path / "ours")
    trained.trainer.save_model(str(tmp_path / "saved"))
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert not differences(trained.weights, dict(loaded.state_dict()))
    assert (tmp_path / "saved" / "training_args.bin").exists()
