"""Schedules, optimizers, shards, adapters, encoder-decoders: written by one library, read by the
other.
"""

from pathlib import Path

import pytest
import torch

from helpers.comparing.bit_differences import differences, without_clock
from helpers.parity.harness import Case, assert_same, run
from helpers.parity.interrupted_runs import (
    DIRECTIONS,
    exchanged,
    folders,
    interruption,
)
from helpers.parity.parity_datasets import point_data, sentence_data
from helpers.parity.parity_models import Classifier, gpt2, t5
from helpers.parity.seq2seq_trainings import build as build_seq2seq

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}

SCHEDULES = {
    "linear": {},
    "cosine": {},
    "cosine_with_restarts": {"lr_scheduler_kwargs": {"num_cycles": 2}},
    "polynomial": {"lr_scheduler_kwargs": {"power": 2.0}},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {},
    "reduce_lr_on_plateau": {
        **EVALUATED,
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.5},
    },
    "cosine_with_min_lr": {"lr_scheduler_kwargs": {"min_lr": 1e-3}},
    "cosine_warmup_with_min_lr": {"lr_scheduler_kwargs": {"min_lr": 1e-3}},
    "warmup_stable_decay": {"lr_scheduler_kwargs": {"num_decay_steps": 4}},
}
OPTIMIZERS = {
    "adamw_torch": {"adam_beta1": 0.8, "weight_decay": 0.1},
    "adafactor": {},
    "sgd": {"optim_args": "momentum=0.9"},
    "adagrad": {},
    "rmsprop": {"optim_args": "momentum=0.9"},
}
CASES = {
    **{
        f"schedule {name}": {"lr_scheduler_type": name, "warmup_steps": 2, **more}
        for name, more in SCHEDULES.items()
    },
    **{f"optimizer {name}": {"optim": name, **more} for name, more in OPTIMIZERS.items()},
}


def test_checkpoint_exchange_tries_every_schedule(reference):
    left_out = {"greedy"}  # of later versions only
    assert set(SCHEDULES) == {member.value for member in reference.SchedulerType} - left_out


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", CASES)
def test_schedules_and_optimizers(reference, ours, tmp_path, name, direction):
    exchanged(reference, ours, Case(Classifier, point_data, CASES[name]), tmp_path, direction)


# --- shards


def in_shards(base):
    """A Trainer whose models are saved in several files: neither library has an argument for it."""

    class InShards(base):
        def _save(self, output_dir=None, state_dict=None):
            super()._save(output_dir, state_dict)
            (Path(output_dir) / "model.safetensors").unlink()
            self.model.save_pretrained(output_dir, max_shard_size="5KB")

    return InShards


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_exchange_of_models_in_shards(reference, ours, tmp_path, direction):
    case = Case(gpt2, sentence_data, subclass=in_shards)
    checkpoint = exchanged(reference, ours, case, tmp_path, direction)
    assert len(list(checkpoint.glob("model-*.safetensors"))) > 2
    assert not (checkpoint / "model.safetensors").exists()


@pytest.mark.parametrize("limit", [None, 1])
def test_checkpoint_exchange_best_of_sharded_models(reference, ours, tmp_path, limit):
    best = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    worst_is_best = {
        "load_best_model_at_end": True,
        "greater_is_better": True,
        "save_total_limit": limit,
    }
    case = Case(gpt2, sentence_data, {**best, **worst_is_best}, subclass=in_shards)
    runs = [
        run(api, case, tmp_path / name) for api, name in ((reference, "theirs"), (ours, "ours"))
    ]
    assert_same(*runs)
    assert folders(runs[0]) == folders(runs[1])


# --- encoder-decoders


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_encoder_decoders(reference, ours, tmp_path, direction):
    """A Seq2SeqTrainer that generates in its evaluations, stopped in mid-epoch."""
    arguments = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "learning_rate": 1e-3,
        "generation_max_length": 8,
    }
    first = reference if direction.startswith("theirs") else ours
    second = reference if direction.endswith("theirs") else ours
    straight = build_seq2seq(reference, t5, tmp_path / "straight", **arguments)
    straight.train()
    stopped = build_seq2seq(
        first, t5, tmp_path / "stopped", trainer=interruption(3)(first), **arguments
    )
    stopped.processing_class.save_pretrained = lambda folder: ()
    stopped.train()
    resumed = build_seq2seq(second, t5, tmp_path / "resumed", **arguments)
    torch.nn.init.zeros_(resumed.model.lm_head.weight)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-3"))
    assert not differences(dict(straight.model.state_dict()), dict(resumed.model.state_dict()))
    histories = [
        [without_clock(entry) for entry in instance.state.log_history[:-1]]
        for instance in (straight, resumed)
    ]
    assert not differences(*histories)


# --- what lies beside the weights


class Words:
    """The least of a tokenizer."""

    def save_pretrained(self, folder):
        (Path(folder) / "words.json").write_text('["a", "b"]')
        return (str(Path(folder) / "words.json"),)


@pytest.mark.parametrize("model", [gpt2, t5])
@pytest.mark.parametrize("only_model", [False, True])
def test_checkpoint_exchange_files_are_equal(reference, ours, tmp_path, model, only_model):
    """Config, generation config and tokenizer beside the model; ours has its manifest and data
    position besides.
    """
    case = Case(
        model,
        sentence_data,
        {"save_strategy": "epoch", "num_train_epochs": 1, "save_only_model": only_model},
        extras=lambda api: {"processing_class": Words()},
    )
    names, texts = [], []
    for api, name in ((reference, "theirs"), (ours, "ours")):
        result = run(api, case, tmp_path / name)
        result.trainer.save_model()
        result.trainer.save_state()
        (checkpoint,) = (tmp_path / name).glob("checkpoint-*")
        names.append(
            {str(path.relative_to(checkpoint.parent)) for path in checkpoint.parent.rglob("*")}
        )
        beside = ("config.json", "generation_config.json", "words.json")
        texts.append([(checkpoint / file).read_text() for file in beside])
    extra = ["_manifest.json"] if only_model else ["_manifest.json", "data_state_0.pth"]
    assert names[1] - names[0] == {f"{checkpoint.name}/{file}" for file in extra}
    assert names[0] <= names[1]
    assert texts[0] == texts[1]
    assert {"config.json", "generation_config.json", "words.json", "trainer_state.json"} <= names[1]
