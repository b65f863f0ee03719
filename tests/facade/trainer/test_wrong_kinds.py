"""Wrong kinds of data, batches, functions and settings are named before the first step; what is
only unusual works.
"""

from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.trainer.tiny_trainings import At, Tiny, make_trainer, points, tiny, weights
from lightrainer import DataCollatorWithPadding, Trainer, default_data_collator

EPOCH = {"eval_strategy": "epoch"}
BEST = {**EPOCH, "save_strategy": "epoch", "load_best_model_at_end": True}


def refused(folder, action, match, **changes):
    """A TypeError or ValueError, and no step was taken."""
    steps = []
    with pytest.raises((TypeError, ValueError), match=match):
        action(
            make_trainer(
                folder, callbacks=[At("on_step_end", lambda *_: steps.append(1))], **changes
            )
        )
    assert not steps


def train(made):
    made.train()


DATA = [
    ((one for one in points(4)), r"eval_dataset .*generator.*only once.*list"),
    ({"a": iter(points(4))}, r"eval_dataset\['a'\] .*only once"),
    ({"a": "train"}, r"eval_dataset\['a'\] .*str"),
    ({"a": {"b": points(4)}}, r"eval_dataset\['a'\] .*dict \(b\)"),
]


@pytest.mark.parametrize(
    ("data", "match"), DATA, ids=["a generator", "an iterator", "text", "a dict"]
)
def test_evaluation_data_of_wrong_kinds(tmp_path, data, match):
    refused(tmp_path, train, match, eval_dataset=data, **EPOCH)


@pytest.mark.parametrize(
    "data", [None, 5, "test", {"a": points(2)}], ids=lambda data: type(data).__name__
)
def test_data_of_wrong_kinds_to_predict(tmp_path, data):
    refused(
        tmp_path,
        lambda made: made.predict(data),
        r"test_dataset must be a dataset .*is (a )?(None|int|str|dict)",
    )
    if data is not None and not isinstance(data, (str, dict)):
        refused(
            tmp_path, lambda made: made.evaluate(data), r"eval_dataset must be a dataset .*is int"
        )


def stacked(samples):
    return {name: torch.stack([sample[name] for sample in samples]) for name in ("x", "labels")}


def test_batches_of_unusual_kinds(tmp_path):
    """Mappings that are no dicts, and tuples where the step that reads them is overridden, give
    the same weights.
    """

    class Tuples(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(*inputs)["loss"]

    states = []
    mapping, in_tuples = (
        lambda samples: UserDict(stacked(samples)),
        lambda samples: tuple(stacked(samples).values()),
    )
    for cls, collator in ((Trainer, stacked), (Trainer, mapping), (Tuples, in_tuples)):
        trainer = make_trainer(tmp_path, cls, data_collator=collator, model=tiny())
        torch.manual_seed(5)
        trainer.train()
        states.append(weights(trainer.model))
    assert all(
        torch.equal(states[0][name], other[name]) for other in states[1:] for name in states[0]
    )


def test_unusual_metrics(tmp_path):
    for result in (None, {}, {"a": np.float32(1)}, {"a": np.ones(2)}, UserDict(a=1.0)):
        assert (
            make_trainer(tmp_path, compute_metrics=lambda _, result=result: result).evaluate()[
                "eval_loss"
            ]
            > 0
        )


@pytest.mark.parametrize("value", [np.ones(3), "x", {"b": 1.0}, None], ids=str)
def test_best_metric_that_is_not_a_number(tmp_path, value):
    trainer = make_trainer(
        tmp_path, compute_metrics=lambda _: {"a": value}, metric_for_best_model="a", **BEST
    )
    with pytest.raises(TypeError, match=r"metric_for_best_model='a' is .*number"):
        trainer.train()


RETURNED_METRICS = [0.5, 0.0, np.float64(0.5), torch.ones(()), [0.5, 0.6], "0.5", [("a", 0.5)]]


@pytest.mark.parametrize("value", RETURNED_METRICS, ids=repr)
def test_metrics_that_are_no_dict(tmp_path, value):
    trainer = make_trainer(tmp_path, compute_metrics=lambda _: value)
    with pytest.raises(TypeError, match=r"compute_metrics returned .*has to return a dict"):
        trainer.evaluate()


class Unlabelled(Tiny):
    """Returns a loss of None without labels."""

    def forward(self, x, labels=None):
        return {"loss": None, **super().forward(x, labels)}


class Unsupervised(Tiny):
    def forward(self, x):
        return self.logits(x)


class Contrastive(Tiny):
    """Computes a loss when asked, as CLIP does."""

    def forward(self, x, return_loss=None):
        logits = self.logits(x)
        return {"loss": logits.mean() if return_loss else None, "logits": logits}


def test_loss_of_none_names_missing_labels_and_dropped_columns(tmp_path):
    renamed = [{"x": row["x"], "target": row["labels"]} for row in points(8)]
    bare = [{"x": row["x"]} for row in points(8)]
    expected = (
        (
            Unlabelled,
            renamed,
            r"loss=None, in a dict with logits.*Missing: labels.*Dropped.*target",
        ),
        (
            Unlabelled,
            bare,
            r"loss=None, in a dict with logits.*Missing: labels.*Add a column 'labels'",
        ),
        (Tiny, bare, r"no `loss`, but a dict with logits.*Missing: labels.*Add a column 'labels'"),
        (Unsupervised, bare, r"no loss, but a Tensor.*Unsupervised.forward takes no labels"),
        (Unlabelled, bare, r"compute_loss_func"),
        (Contrastive, bare, r"data_collator add return_loss=True"),
    )
    for model, data, match in expected:
        refused(tmp_path, train, match, model=model(), train_dataset=data)


class WithoutReturn(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        model(**inputs)


class AlwaysWithOutputs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return outputs["loss"], outputs


class NeverWithOutputs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs)["loss"]


class StepWithoutReturn(Trainer):
    def training_step(self, *args, **kwargs):
        super().training_step(*args, **kwargs)


class NumberForLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs)["loss"].item()


LOSSES = [
    (WithoutReturn, {}, r"WithoutReturn.compute_loss returned NoneType .*Return the loss"),
    (AlwaysWithOutputs, {}, r"compute_loss returned tuple .*only with return_outputs=True"),
    (NumberForLoss, {}, r"compute_loss returned float .*tensor with gradients"),
    (StepWithoutReturn, {}, r"StepWithoutReturn.training_step returned NoneType"),
    (
        Trainer,
        {"compute_loss_func": lambda *_, **__: None},
        r"compute_loss_func returned NoneType",
    ),
]


@pytest.mark.parametrize(("cls", "given", "match"), LOSSES)
def test_losses_that_are_not_returned(tmp_path, cls, given, match):
    for accumulation in (1, 2):
        settings = {"gradient_accumulation_steps": accumulation, "cls": cls, **given}
        refused(tmp_path, train, match, **settings)


def test_outputs_that_are_not_returned_to_an_evaluation(tmp_path):
    with pytest.raises(TypeError, match=r"compute_loss returned .*pair \(loss, outputs\)"):
        make_trainer(tmp_path, NeverWithOutputs).evaluate()


KINDS_OF_BATCHES = {
    "list": lambda samples: samples,
    "NoneType": lambda samples: None,
    "Tensor": lambda samples: stacked(samples)["x"],
    "tuple": lambda samples: tuple(stacked(samples).values()),
}


@pytest.mark.parametrize("kind", KINDS_OF_BATCHES)
def test_batches_that_are_no_dict(tmp_path, kind):
    match = rf"The batch is {kind} .*data_collator return a dict.*takes: x, labels\."
    collator = KINDS_OF_BATCHES[kind]
    refused(tmp_path, train, match, data_collator=collator)
    refused(tmp_path, lambda made: made.evaluate(), match, data_collator=collator)


def test_loaders_as_datasets(tmp_path):
    loader = DataLoader(points(8), batch_size=2)
    match = r"{} is a DataLoader.*loader.dataset.*batch_size=2; or override get_{}_dataloader"
    train_match = match.format("train_dataset", "train")
    refused(tmp_path, train, train_match, train_dataset=loader)
    eval_match = match.format("eval_dataset", "eval")
    refused(tmp_path, train, eval_match, eval_dataset=loader, **EPOCH)
    refused(tmp_path, lambda made: made.evaluate(loader), eval_match)
    test_match = match.format("test_dataset", "test")
    refused(tmp_path, lambda made: made.predict(loader), test_match)


def test_loaders_as_datasets_of_an_own_loader_method(tmp_path):
    class Own(Trainer):
        def get_train_dataloader(self):
            return self.train_dataset

    loader = DataLoader(points(8), batch_size=4, collate_fn=default_data_collator)
    assert make_trainer(tmp_path, Own, train_dataset=loader).train().global_step == 2


class TinyForSequenceClassification(Tiny):
    """Named as a model of transformers is, with the number of its classes."""

    def __init__(self, **settings):
        super().__init__()
        self.config = SimpleNamespace(**{"num_labels": 3, "problem_type": None, **settings})

    def forward(self, x, labels=None):
        clamped = None if labels is None else labels.clamp(0, 2).long()
        return super().forward(x, clamped)

    # Only the losses of transformers' own models are known.
    forward.__module__ = "transformers.models.tiny"


class OwnForSequenceClassification(TinyForSequenceClassification):
    """A subclass whose `forward` may have another head than its config says."""

    def forward(self, x, labels=None):
        return super().forward(x, labels)


class TinyForCausalLM(TinyForSequenceClassification):
    def get_output_embeddings(self):
        return self.second


class LigerForCausalLM(TinyForCausalLM):
    """A model whose `forward` Liger's kernels have replaced."""

    def forward(self, x, labels=None):
        return super().forward(x, labels)

    forward.__module__ = "liger_kernel.transformers.model.llama"


def labelled(label):
    return [{"x": row["x"], "labels": label} for row in points(8)]


@pytest.mark.parametrize("kind", [TinyForSequenceClassification, TinyForCausalLM, LigerForCausalLM])
@pytest.mark.parametrize("label", [3, -1])
def test_labels_out_of_range(tmp_path, kind, label):
    match = rf"first batch has the label {label}, but {kind.__name__} has 3 classes: .*0 to 2"
    refused(tmp_path, train, match, model=kind(), train_dataset=labelled(label))


def test_labels_whose_range_is_unknown(tmp_path):
    """Negative controls: nothing is compared where labels may be anything else than classes."""

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs)["loss"]

    model = TinyForSequenceClassification
    # Scripts with another head set `num_labels` of the model, and not of its config.
    other_head = model()
    other_head.num_labels = 4
    for cls, network, label in (
        (Trainer, model(), -100),
        (Trainer, model(), 2),
        (Trainer, model(), 3.0),
        (Trainer, model(num_labels=1), 3),
        (Trainer, model(problem_type="regression"), 3),
        (Own, model(), 3),
        (Trainer, other_head, 3),
        (Trainer, OwnForSequenceClassification(), 3),
    ):
        assert (
            make_trainer(tmp_path, cls, model=network, train_dataset=labelled(label))
            .train()
            .global_step
            == 2
        )


@pytest.mark.parametrize(("label", "known"), [(10, True), (12, False)])
def test_labels_of_tokens_added_to_tied_embeddings(tmp_path, label, known):
    """transformers 5.3.0 leaves `out_features` of the output layer as it was."""
    config = GPT2Config(
        vocab_size=8, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    model.resize_token_embeddings(12)
    assert model.lm_head.out_features == 8
    trainer = make_trainer(
        tmp_path,
        model=model,
        train_dataset=[{"input_ids": [1, 9, 2], "labels": [1, label, 2]}] * 8,
    )
    if known:
        assert trainer.train().global_step == 2
    else:
        match = r"has the label 12, but GPT2LMHeadModel has 12 classes: labels range from 0 to 11"
        with pytest.raises(ValueError, match=match):
            trainer.train()


def test_settings_of_checkpointing_that_torch_does_not_know(tmp_path):
    def wrong(name):
        return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {name: True}}

    refused(
        tmp_path,
        train,
        r"gradient_checkpointing_kwargs has no option 'foo'.*use_reentrant",
        **wrong("foo"),
    )
    make_trainer(tmp_path, **wrong("preserve_rng_state")).train()


def test_collator_that_returns_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"batch is empty.*x, labels"):
        make_trainer(tmp_path, data_collator=lambda items: {}).train()


def test_default_collator_pads_with_whatever_can_pad(tmp_path):
    class Padding:
        model_input_names = ["x"]

        def pad(self, features, **kwargs):
            rows = [[*feature["x"], *[0.0] * (8 - len(feature["x"]))] for feature in features]
            return {
                "x": torch.tensor(rows),
                "labels": torch.tensor([feature["labels"] for feature in features]),
            }

    data = [{"x": [1.0] * (5 + index % 4), "labels": index % 3} for index in range(8)]
    trainer = make_trainer(tmp_path, train_dataset=data, processing_class=Padding())
    assert isinstance(trainer.data_collator, DataCollatorWithPadding)
    assert trainer.train().global_step == 2
    assert make_trainer(tmp_path).data_collator is default_data_collator
    assert make_trainer(tmp_path, processing_class=object()).data_collator is default_data_collator
