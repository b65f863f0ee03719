"""Refusals of a Trainer, before any file is written: they name the parameter and the value."""

import inspect
import pickle
import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset

import lightrainer
from helpers.trainer.tiny_trainings import Tiny, files, make_trainer, points, tiny
from lightrainer import Trainer, TrainingArguments


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


@pytest.fixture
def nothing_is_written(tmp_path):
    """Check that no file was written."""
    yield tmp_path
    assert files(tmp_path) == []


def refusal(kind, *words, folder, **changes):
    """Construct and train, expect an error with all these words in its message, and return the
    message.
    """
    with pytest.raises(kind) as error:
        make_trainer(folder / "out", **changes).train()
    message = str(error.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"the message lacks {missing}: {message}"
    return message


# --- the model


class Lossless(Tiny):
    def forward(self, x, labels=None):
        return {"logits": self.logits(x)}


MODELS = [
    ({"model_init": lambda: None}, RuntimeError, ["model_init", "None"]),
    ({"model_init": lambda: 5}, TypeError, ["model_init", "5"]),
    ({"model_init": lambda a, b: tiny()}, RuntimeError, ["model_init", "2 arguments"]),
    ({"model": Lossless()}, ValueError, ["logits", "x, labels", "`loss`", "compute_loss"]),
]


@pytest.mark.parametrize(
    ("changes", "kind", "words"), MODELS, ids=["none", "a number", "two", "no loss"]
)
def test_wrong_models(nothing_is_written, changes, kind, words):
    refusal(kind, *words, folder=nothing_is_written, **changes)


def test_trainer_can_be_pickled_while_its_arguments_are_applied(tmp_path):
    """A method of the Trainer as collator is sent to workers that are spawned."""
    trainer = make_trainer(tmp_path)
    trainer._lightrainer.applied_arguments.apply()
    assert pickle.loads(pickle.dumps(trainer)).args == trainer.args


def test_model_that_is_a_class_names_model_init(nothing_is_written):
    refusal(
        TypeError, "model", "Pass an instance", "model_init", folder=nothing_is_written, model=Tiny
    )


def test_train_dataset_that_is_a_dict_names_its_keys_and_a_remedy(tmp_path):
    refusal(
        TypeError,
        "x, labels",
        "from_dict",
        folder=tmp_path,
        train_dataset={"x": [1.0], "labels": [1]},
    )


@pytest.mark.parametrize(
    ("place", "kind"), [("file", FileExistsError), ("file/folder", NotADirectoryError)]
)
def test_output_dir_that_cannot_be_created_is_named(tmp_path, place, kind):
    (tmp_path / "file").touch()
    with pytest.raises(kind, match="output_dir cannot be created") as error:
        make_trainer(tmp_path / place)
    assert error.value.filename == str(tmp_path / place)


# --- the types, parameter by parameter

SGD = torch.optim.SGD(tiny().parameters(), lr=0.1)
CALLABLES = ["model_init", "compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics"]
CALLABLES += ["data_collator", "eval_data_collator"]
WRONG = [
    *[(name, 5) for name in CALLABLES],
    *[(name, value) for name in ("model", "train_dataset", "eval_dataset") for value in (5, Tiny)],
    *[("args", value) for value in ("folder", lightrainer.TrainingArguments)],
    ("eval_dataset", {"test": 5}),
    *[(name, [Stream([]), Stream([])]) for name in ("train_dataset", "eval_dataset")],
    *[("callbacks", value) for value in (["print"], lightrainer.TrainerCallback())],
    *[("optimizers", value) for value in (("adam", None), SGD, (SGD,))],
    *[
        ("optimizer_cls_and_kwargs", value)
        for value in (5, torch.optim.SGD, (torch.optim.SGD,), ("adam", {}))
    ],
]


@pytest.mark.parametrize(
    ("name", "value"), WRONG, ids=[f"{name}={value!r:.40}" for name, value in WRONG]
)
def test_construction_with_a_wrong_type(nothing_is_written, name, value):
    """A TypeError that names the parameter and the actual type, at construction, not
    during the training.
    """
    parameters = {"model": None, name: value} if name == "model_init" else {name: value}
    message = refusal(TypeError, folder=nothing_is_written, **parameters)
    assert re.search(
        rf"\b{name}\b|\bcallback\b" if name == "callbacks" else rf"\b{name}\b", message
    ), message
    parts = [
        value,
        *(
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, (list, tuple))
            else ()
        ),
    ]
    assert any(type(part).__name__ in message or repr(part)[:20] in message for part in parts), (
        message
    )


def test_construction_tries_every_parameter_with_a_wrong_type():
    """`processing_class` may be anything."""
    documented = set(inspect.signature(Trainer).parameters)
    assert {name for name, _ in WRONG} == documented - {"processing_class"}


def test_construction_reports_all_wrong_types_at_once(nothing_is_written):
    names = ("data_collator", "compute_metrics", "train_dataset")
    refusal(TypeError, *names, folder=nothing_is_written, **dict.fromkeys(names, 5))


# --- values that do not go together


@pytest.mark.parametrize(
    "optimizers",
    [(SGD, None), (None, torch.optim.lr_scheduler.StepLR(SGD, 1))],
    ids=["", "schedule"],
)
def test_construction_with_an_optimizer_before_model_init(nothing_is_written, optimizers):
    changes = {"model_init": tiny, "optimizers": optimizers}
    refusal(RuntimeError, "optimizers", "model_init", folder=nothing_is_written, **changes)


class CallsItLabel(Tiny):
    def forward(self, x, label=None):
        return super().forward(x, label)


@pytest.mark.parametrize("how", ["model", "model_init", "label_names"])
def test_inputs_called_label_with_the_default_collator(nothing_is_written, how):
    """The default collator makes `labels` out of `label`, so the model would never see it."""
    parameters = {
        "model": {"model": CallsItLabel()},
        "model_init": {"model_init": lambda: CallsItLabel()},
    }
    changes = parameters.get(how, {"label_names": ["label"]})
    refusal(
        ValueError, "'label'", "'labels'", "data_collator", folder=nothing_is_written, **changes
    )


def test_inputs_called_label_that_the_model_does_not_get(tmp_path):
    """Where `compute_loss` takes `labels` out of the batch, or where data has no labels."""

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            return cross_entropy(model(**inputs)["logits"], labels)

    rows = [{"x": row["x"], "label": row["labels"]} for row in points(8)]
    trainer = make_trainer(tmp_path, Own, model=CallsItLabel(), train_dataset=rows)
    assert trainer.train().global_step == 2

    # A loss function gets `labels`, and not the model.
    losses = {
        "compute_loss_func": lambda outputs, labels, **_: cross_entropy(outputs["logits"], labels)
    }
    trainer = make_trainer(
        tmp_path, model=CallsItLabel(), train_dataset=rows, eval_dataset=None, **losses
    )
    assert trainer.train().global_step == 2

    trainer = make_trainer(tmp_path, model=CallsItLabel(), train_dataset=None, eval_dataset=None)
    unlabelled = [{"x": row["x"]} for row in points(4)]
    assert len(trainer.predict(unlabelled).predictions) == 4


def test_construction_reports_all_wrong_values_at_once(nothing_is_written):
    options = {"folder": nothing_is_written, "train_dataset": Stream([]), "eval_dataset": None}
    options |= {
        "eval_strategy": "epoch",
        "compute_metrics": lambda prediction: {},
        "batch_eval_metrics": True,
    }
    refusal(ValueError, *("max_steps", "eval_dataset", "compute_result"), **options)


# --- the data, when it is needed


TRAINED = [
    (
        {"train_dataset": torch.utils.data.TensorDataset(torch.empty(0, 8))},
        ["train_dataset", "length 0"],
    ),
    ({"train_dataset": points(3), "dataloader_drop_last": True}, ["training data", "no batch"]),
    ({"train_dataset": Stream([]), "max_steps": 4}, ["training data", "no batch"]),
]


@pytest.mark.parametrize(
    ("changes", "words"), TRAINED, ids=["tensors", "less than a batch", "a stream"]
)
def test_data_without_a_batch(nothing_is_written, changes, words):
    refusal(ValueError, *words, folder=nothing_is_written, **changes)


def test_construction_without_evaluation_data(nothing_is_written):
    trainer = make_trainer(nothing_is_written, eval_dataset=None)
    with pytest.raises(TypeError, match=r"eval_dataset is a list of datasets.*Pass a dict"):
        trainer.evaluate([Stream([]), Stream([])])
    with pytest.raises(TypeError, match="are a dict of them, not a list"):
        trainer.evaluate([points(8), points(8)])
    with pytest.raises(ValueError, match="eval_dataset="):
        trainer.evaluate()


@pytest.mark.parametrize(
    "own", [{"near": points(4), "far": points(4)}, points(4)], ids=["names", "no names"]
)
def test_evaluation_data_of_an_unknown_name(nothing_is_written, own):
    trainer = make_trainer(nothing_is_written, eval_dataset=own)
    with pytest.raises(ValueError, match=r"eval_dataset='nearr' .*(near, far|no named)"):
        trainer.evaluate("nearr")


def test_construction_with_an_empty_evaluation_set(nothing_is_written):
    """No samples give no loss, as in the reference, and no warning."""
    trainer = make_trainer(nothing_is_written)
    metrics = trainer.evaluate([])
    assert "eval_loss" not in metrics
    assert metrics["eval_samples_per_second"] == 0
    assert trainer.predict([]).predictions is None


def test_construction_warns_of_label_smoothing_at_the_line_of_the_script(tmp_path):
    class SeveralLabels(torch.nn.Linear):
        config = SimpleNamespace(problem_type="multi_label_classification")

    args = TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, report_to="none")
    with pytest.warns(UserWarning, match="so it is disabled") as caught:
        Trainer(SeveralLabels(2, 2), args)
    assert caught[0].filename == __file__
