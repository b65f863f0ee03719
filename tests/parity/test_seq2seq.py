"""Encoder-decoder models: training, evaluation and prediction by generation, bit for bit as in
the reference.
"""

import json

import numpy as np
import pytest

from helpers.comparing.bit_differences import differences, without_clock
from helpers.parity.harness import DEFAULTS, random_state
from helpers.parity.seq2seq_trainings import Words, bart, build, pairs, t5

pytestmark = [
    # Both libraries meet it at the first batch, for a model that says no length.
    pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
]


def everything(api, model, folder, train=True, gen_kwargs=None, labelled=True, **keywords):
    """All that a training, an evaluation and a prediction leave behind."""
    trainer = build(api, model, folder, **keywords)
    if train:
        trainer.train()
    gen_kwargs = gen_kwargs or {}
    metrics = trainer.evaluate(**gen_kwargs)
    prediction = trainer.predict(pairs(7, seed=8, labelled=labelled), **gen_kwargs)
    return {
        "history": [without_clock(entry) for entry in trainer.state.log_history],
        "metrics": without_clock(metrics),
        "predictions": prediction.predictions,
        "label_ids": prediction.label_ids,
        "test_metrics": without_clock(prediction.metrics),
        "weights": {
            name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()
        },
        "random": random_state(),
        "gen_kwargs": trainer._gen_kwargs,
        "config": trainer.model.generation_config.to_dict(),
    }


def assert_same(reference, ours, model, folder, **keywords):
    expected = everything(reference, model, folder / "reference", **keywords)
    actual = everything(ours, model, folder / "ours", **keywords)
    assert not differences(expected, actual)
    return actual


MODELS = [
    (t5, {}, {}),
    (bart, {}, {}),
    (t5, {"generation_max_length": 6, "generation_num_beams": 3}, {}),
    (bart, {"generation_max_length": 6, "generation_num_beams": 3}, {}),
    (t5, {"generation_max_length": 6}, {"max_length": 9}),
    (bart, {}, {"max_length": None, "num_beams": None, "max_new_tokens": 30}),
    (t5, {"generation_config": "object"}, {}),
]


@pytest.mark.parametrize(
    ("model", "arguments", "gen_kwargs"),
    MODELS,
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_generated_predictions(reference, ours, tmp_path, model, arguments, gen_kwargs):
    """Greedy and with beams, however the length is specified, after a training with an evaluation
    in each epoch.
    """
    if arguments.get("generation_config") == "object":
        arguments = {
            "generation_config": reference.GenerationConfig(
                max_new_tokens=7, num_beams=2, **special(model)
            )
        }
    actual = assert_same(
        reference, ours, model, tmp_path, gen_kwargs=gen_kwargs, eval_strategy="epoch", **arguments
    )
    assert actual["predictions"].dtype == np.int64
    assert len(np.unique(actual["predictions"])) > 3  # there is something to compare
    assert "eval_tokens" in actual["metrics"]


def test_seq2seq_several_sequences_per_sample(reference, ours, tmp_path):
    """All of them, also for the last batch, which is shorter than the others."""
    several = {"num_beams": 3, "num_return_sequences": 3}
    actual = assert_same(
        reference, ours, t5, tmp_path, gen_kwargs=several, train=False, generation_max_length=8
    )
    assert len(actual["predictions"]) == 3 * len(actual["label_ids"])
    assert len(actual["label_ids"]) % DEFAULTS["per_device_eval_batch_size"]


def special(model):
    return {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0 if model is t5 else 2,
    }


@pytest.mark.parametrize("as_folder", [True, False])
def test_generation_config_from_a_path(reference, ours, tmp_path, as_folder):
    reference.GenerationConfig(max_length=11, num_beams=2, **special(t5)).save_pretrained(tmp_path)
    path = tmp_path if as_folder else tmp_path / "generation_config.json"
    for source in (str(path), path):
        actual = assert_same(reference, ours, t5, tmp_path, train=False, generation_config=source)
        assert actual["predictions"].shape[1] == 11


def test_seq2seq_dict_of_settings_equals_the_object(ours, reference, tmp_path):
    settings = {"max_length": 9, "num_beams": 2, **special(t5)}
    config = reference.GenerationConfig(**settings)
    expected = everything(reference, t5, tmp_path / "a", train=False, generation_config=config)
    actual = everything(ours, t5, tmp_path / "b", train=False, generation_config=settings)
    assert not differences(expected, actual)


def test_data_without_labels(reference, ours, tmp_path):
    """The collator then gives `labels=None`, with which 5.3.0 fails: it is compared through a
    collator without.
    """

    def collate(samples):
        return Words().pad(samples)

    trainer = {"data_collator": collate, "eval_dataset": None}
    predictions = []
    for api in (reference, ours):
        seq2seq_trainer = build(api, t5, tmp_path / api.__name__, trainer=trainer)
        predictions.append(seq2seq_trainer.predict(pairs(7, labelled=False), max_length=6))
    assert not differences(*(prediction.predictions for prediction in predictions))
    assert predictions[1].label_ids is None
    with_none = build(ours, t5, tmp_path / "none").predict(pairs(7, labelled=False), max_length=6)
    assert not differences(predictions[0].predictions, with_none.predictions)
    assert with_none.label_ids is None
    with pytest.raises(Exception):  # noqa: B017, PT011 - any error: the reference cannot run this case
        build(reference, t5, tmp_path / "theirs").predict(pairs(7, labelled=False), max_length=6)


ARGUMENTS = [
    *(
        {"predict_with_generate": False},
        {"prediction_loss_only": True},
        {"label_smoothing_factor": 0.1},
    ),
    *({"eval_do_concat_batches": False}, {"include_for_metrics": ["inputs", "loss"]}),
    {"eval_accumulation_steps": 1},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_seq2seq_arguments_beside_generation(reference, ours, tmp_path, arguments):
    options = dict(arguments)
    if (
        options.get("predict_with_generate") is False
        or options.get("eval_do_concat_batches") is False
    ):
        options["trainer"] = {
            "compute_metrics": lambda prediction: {"seen": len(prediction.label_ids)}
        }
    assert_same(
        reference, ours, t5, tmp_path, eval_strategy="epoch", generation_max_length=7, **options
    )


def test_seq2seq_generates_in_prediction_but_not_without_metrics(reference, ours, tmp_path):
    actual = assert_same(
        reference, ours, bart, tmp_path, trainer={"compute_metrics": None}, generation_max_length=5
    )
    assert "eval_tokens" not in actual["metrics"]
    assert actual["predictions"].ndim == 2


@pytest.mark.parametrize("collator_model", [True, False])
def test_decoder_inputs_made_from_labels_are_not_gone_on_from(
    reference, ours, tmp_path, collator_model
):
    """With the model in the collator a batch has `decoder_input_ids`; the predictions are the
    same as without.
    """
    actual = assert_same(reference, ours, t5, tmp_path, train=False, collator_model=collator_model)
    without = everything(ours, t5, tmp_path, train=False, collator_model=not collator_model)
    assert not differences(actual["predictions"], without["predictions"])


def test_seq2seq_override_receives_and_returns_the_same(reference, ours, tmp_path):
    """`prediction_step` in a subclass: its arguments, and keyword arguments of generation that it
    passes on.
    """

    def subclass(base):
        class Own(base):
            def prediction_step(
                self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs
            ):
                step, length = super().prediction_step, self._gen_kwargs["max_length"] + 2
                loss, tokens, labels = step(
                    model, inputs, prediction_loss_only, ignore_keys, max_length=length
                )
                return loss, None if tokens is None else tokens + 1, labels

        return Own

    assert_same(
        reference, ours, t5, tmp_path, train=False, subclass=subclass, generation_max_length=4
    )


def test_question_answering_trainer(reference, ours, tmp_path):
    """A subclass with its own `evaluate`, as in scripts for generated answers."""

    def subclass(base):
        class Answering(base):
            def evaluate(
                self,
                eval_dataset=None,
                eval_examples=None,
                ignore_keys=None,
                metric_key_prefix="eval",
                **kw,
            ):
                self._gen_kwargs = {"max_length": self.args.generation_max_length, **kw}
                loader = self.get_eval_dataloader(eval_dataset)
                compute, self.compute_metrics = self.compute_metrics, None
                try:
                    output = self.evaluation_loop(loader, "Evaluation", None, ignore_keys)
                finally:
                    self.compute_metrics = compute
                metrics = {
                    f"{metric_key_prefix}_{key}": value for key, value in compute(output).items()
                }
                metrics.update(output.metrics)
                self.log(metrics)
                self.control = self.callback_handler.on_evaluate(
                    self.args, self.state, self.control, metrics
                )
                return metrics

        return Answering

    options = {"subclass": subclass, "generation_max_length": 6, "eval_strategy": "epoch"}
    actual = assert_same(reference, ours, t5, tmp_path, **options)
    assert "eval_width" in actual["history"][-1]


def test_checkpoints_hold_the_same_generation_config(reference, ours, tmp_path):
    saved = []
    for api in (reference, ours):
        config = reference.GenerationConfig(max_length=9, num_beams=2, **special(t5))
        unsaved = {"processing_class": None}
        folder = tmp_path / api.__name__
        trainer = build(
            api, t5, folder, trainer=unsaved, generation_config=config, eval_strategy="epoch"
        )
        trainer.train()
        trainer.model.save_pretrained(folder)
        saved.append(json.loads((folder / "generation_config.json").read_text()))
        assert config.top_k is None  # the user's object stays as it was
    assert saved[0] == saved[1]
    assert saved[1]["max_length"] == 9
