"""Seq2SeqTrainer with a model that uses nothing of transformers, and the messages when something
does not fit.
"""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from helpers.trainer.plain_seq2seq import PAD, START, Plain, pad, pairs, plain, seq2seq_trainer
from lightrainer import Seq2SeqTrainer
from lightrainer.facade.strategies.ddp import DDP, SingleDevice
from lightrainer.facade.strategies.deepspeed import DeepSpeed
from lightrainer.facade.strategies.fsdp import FSDP
from lightrainer.lightning_modules.models.generation import padding_token


def right_tokens(prediction):
    width = min(prediction.predictions.shape[1], prediction.label_ids.shape[1])
    return {
        "right": float(
            (prediction.predictions[:, :width] == prediction.label_ids[:, :width]).mean()
        )
    }


METRICS = {"compute_metrics": right_tokens}


class Restless(Plain):
    """Ends its sequences at different lengths."""

    def generate(self, source, max_length=5):
        return super().generate(source, max_length=int(source[0, 0]) % 3 + 2)


def test_seq2seq_plain_model_trains_evaluates_and_predicts(tmp_path):
    trainer = seq2seq_trainer(tmp_path, trainer=METRICS, eval_strategy="epoch")
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "eval_right" in entry]
    assert {"eval_loss", "eval_right", "eval_runtime"} <= set(logged)
    prediction = trainer.predict(pairs(7, seed=3))
    assert prediction.predictions.shape == (7, 5)
    assert (prediction.predictions[:, 0] == START).all()
    assert prediction.label_ids.shape == (7, 3)
    assert {call["training"] for call in trainer.model.calls} == {False}


def test_sequences_of_different_lengths_are_filled_up(tmp_path):
    trainer = seq2seq_trainer(
        tmp_path, trainer={"model": plain(kind=Restless)}, per_device_eval_batch_size=1
    )
    data = pairs(6, seed=3)
    predictions = trainer.predict(data).predictions
    widths = [int(sample["source"][0]) % 3 + 2 for sample in data]
    assert len(set(widths)) > 1
    assert predictions.shape == (6, max(widths))
    assert [(row != -100).sum() for row in predictions] == widths


ARGUMENTS = [
    ({}, {}, {"max_length": 5, "num_beams": 1}),
    (
        {"generation_max_length": 7, "generation_num_beams": 2},
        {"max_length": 3},
        {"max_length": 3, "num_beams": 2},
    ),
    (
        {"generation_config": {"max_length": 6, "num_beams": 3}},
        {"num_beams": 2},
        {"max_length": 6, "num_beams": 2},
    ),
    (
        {"generation_max_length": 7},
        {"max_length": None, "num_beams": None},
        {"max_length": 7, "num_beams": 1},
    ),
]


@pytest.mark.parametrize(("arguments", "call", "expected"), ARGUMENTS, ids=str)
def test_precedence_of_generation_settings(tmp_path, arguments, call, expected):
    """A call before the arguments, the arguments before the generation config, and that before
    the model's own.
    """
    tokens = SimpleNamespace(pad_token_id=PAD)
    trainer = seq2seq_trainer(
        tmp_path, trainer={**METRICS, "processing_class": tokens}, **arguments
    )
    trainer.evaluate(**call)
    trainer.predict(pairs(3), **call)
    assert len(trainer.model.calls) == 3
    assert all(keywords == {**expected, "training": False} for keywords in trainer.model.calls)


def test_seq2seq_unknown_generation_option_is_named(tmp_path):
    trainer = seq2seq_trainer(tmp_path)
    with pytest.raises(
        ValueError, match=r"Plain.generate does not accept max_lenght=3. Did you mean 'max_length'"
    ):
        trainer.predict(pairs(3), max_lenght=3)


def test_columns_that_generate_does_not_take_are_left_out(tmp_path):
    class Masked(Plain):
        def forward(self, source, mask=None, labels=None):
            assert mask is not None
            return super().forward(source, labels)

    def collate(samples):
        return {**pad(samples), "mask": torch.ones(len(samples))}

    trainer = seq2seq_trainer(
        tmp_path, trainer={"model": plain(kind=Masked), "data_collator": collate}
    )
    assert trainer.predict(pairs(4)).predictions.shape == (4, 5)


STRATEGIES = [(SingleDevice("", {}), False), (DDP("", {}), False)]
STRATEGIES += [
    (FSDP("", {"sharding_strategy": word}), word == "FULL_SHARD")
    for word in ("FULL_SHARD", "NO_SHARD")
]
STRATEGIES += [
    (DeepSpeed("", {"config": {"zero_optimization": {"stage": n}}}), n == 3) for n in (2, 3)
]


@pytest.mark.parametrize(("strategy", "expected"), STRATEGIES)
def test_processes_generate_in_step_where_they_share_the_weights(tmp_path, strategy, expected):
    class Synced(Plain):
        def generate(self, source, synced_gpus=None):
            self.calls.append(synced_gpus)
            return torch.zeros(len(source), 3, dtype=torch.long)

    trainer = seq2seq_trainer(tmp_path, trainer={"model": plain(kind=Synced)})
    trainer._lightrainer.plan = replace(trainer.plan, strategy=strategy)
    trainer.prediction_step(trainer.model, pad(pairs(2)), False)
    trainer.prediction_step(trainer.model, pad(pairs(2)), False, synced_gpus="mine")
    assert trainer.model.calls == [expected, "mine"]


def test_seq2seq_own_loss_is_the_evaluation_loss(tmp_path):
    class Doubling(Seq2SeqTrainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            outputs = model(**inputs)
            return (2 * outputs["loss"], outputs) if return_outputs else 2 * outputs["loss"]

    def constant(outputs, labels, num_items_in_batch=None):
        assert labels.shape[1] == 3
        return outputs["logits"].sum() * 0 + 5

    default = seq2seq_trainer(tmp_path, trainer=METRICS).evaluate()
    overridden = seq2seq_trainer(tmp_path, Doubling, trainer=METRICS).evaluate()
    passed = seq2seq_trainer(
        tmp_path, trainer={**METRICS, "compute_loss_func": constant}
    ).evaluate()
    assert overridden["eval_loss"] == pytest.approx(2 * default["eval_loss"], abs=1e-5)
    assert passed["eval_loss"] == 5
    assert default["eval_right"] == overridden["eval_right"] == passed["eval_right"]


def test_seq2seq_padding_step_can_be_overridden(tmp_path):
    class Padded(Seq2SeqTrainer):
        def _pad_tensors_to_max_len(self, tensor, max_length):
            return torch.nn.functional.pad(tensor, (0, max_length - tensor.shape[-1]), value=77)

    trainer = seq2seq_trainer(tmp_path, Padded, generation_config={"max_length": 9})
    prediction = trainer.predict(pairs(3), max_length=4)
    assert prediction.predictions.shape == prediction.label_ids.shape == (3, 9)
    assert (prediction.predictions[:, 4:] == 77).all()


def test_loading_the_generation_config_can_be_overridden(tmp_path):
    class Loaded(Seq2SeqTrainer):
        @staticmethod
        def load_generation_config(gen_config_arg):
            return {"max_length": int(gen_config_arg)}

    trainer = seq2seq_trainer(tmp_path, Loaded, generation_config="4")
    assert trainer.predict(pairs(3, labelled=False)).predictions.shape == (3, 4)
    assert trainer.model.generation_config == {"max_length": 4}


PROCESSING_CLASS = [
    (
        SimpleNamespace(pad_token_id=None, eos_token_id=4),
        {"pad_token_id": 5},
        {"pad_token_id": 6},
        4,
    ),
    (SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=7)), {}, {"pad_token_id": 6}, 7),
    (None, {}, SimpleNamespace(pad_token_id=None, eos_token_id=[8, 9]), 8),
    (object(), SimpleNamespace(pad_token_id=None, eos_token_id=2), {"eos_token_id": []}, 2),
]


@pytest.mark.parametrize(("processing_class", "config", "generation", "expected"), PROCESSING_CLASS)
def test_seq2seq_padding_token_is_found(processing_class, config, generation, expected):
    assert (
        padding_token(
            processing_class, SimpleNamespace(config=config, generation_config=generation)
        )
        == expected
    )


def test_seq2seq_unknown_padding_token_raises(tmp_path):
    trainer = seq2seq_trainer(tmp_path, generation_config={"max_length": 8})
    with pytest.raises(ValueError, match=r"No token to pad with.*Plain"):
        trainer.predict(pairs(3), max_length=4)


def test_seq2seq_model_that_cannot_generate_is_refused(tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(TypeError, match="Linear has no method generate"):
        seq2seq_trainer(folder, trainer={"model": torch.nn.Linear(2, 2)})
    assert not folder.exists()


@pytest.mark.parametrize(
    ("result", "shown"),
    [([1, 2], "returned a list"), (torch.ones(3), r"returned a Tensor of shape \(3,\)")],
    ids=str,
)
def test_something_else_than_token_ids_is_refused(tmp_path, result, shown):
    """But the output object of a generation is fine."""
    model = plain()
    model.generate = lambda source: result
    with pytest.raises(TypeError, match=f"Plain.generate {shown}"):
        seq2seq_trainer(tmp_path, trainer={"model": model}).predict(pairs(3))
    model.generate = lambda source: SimpleNamespace(
        sequences=torch.ones(len(source), 4, dtype=torch.long), scores=None
    )
    assert seq2seq_trainer(tmp_path, trainer={"model": model}).predict(
        pairs(3)
    ).predictions.shape == (3, 4)


def test_seq2seq_model_init_keeps_generation_settings(tmp_path):
    trainer = seq2seq_trainer(
        tmp_path,
        trainer={"model_init": lambda: plain(), **METRICS},
        generation_config={"max_length": 3},
    )
    first = trainer.model
    trainer.train()
    assert trainer.model is not first
    trainer.predict(pairs(3))
    assert [call["max_length"] for call in trainer.model.calls] == [3]


def test_seq2seq_generation_config_set_later_is_used(tmp_path):
    trainer = seq2seq_trainer(tmp_path, generation_config={"max_length": 4})
    trainer.args.generation_config = {"max_length": 3}
    trainer.predict(pairs(3))
    assert trainer.model.calls[-1]["max_length"] == 3
    trainer.args.generation_num_beams = 0
    with pytest.raises(ValueError, match="generation_num_beams=0"):
        trainer.predict(pairs(3))


def test_seq2seq_copied_trainer_evaluates_and_predicts(tmp_path):
    trainer = seq2seq_trainer(tmp_path, generation_config={"max_length": 3})
    copied = copy.copy(trainer)
    assert copied.evaluate(pairs(3)).keys() >= {"eval_loss"}
    copied.predict(pairs(3))
    assert trainer.model.calls[-1]["max_length"] == 3
