"""What a Trainer refuses, and what it says: the name, what was passed, why not, what to do; before any file exists."""

import inspect
import re

import pytest
import torch
from tiny import Tiny, arguments, files, points, tiny, trainer
from torch.utils.data import IterableDataset

import lightrainer
from lightrainer import Trainer


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


@pytest.fixture
def nothing_is_written(tmp_path):
    """Not a single file, whatever was tried."""
    yield tmp_path
    assert files(tmp_path) == []


def refusal(kind, *words, folder, train=False, **changes):
    """Construct, and train if asked, expect an error with all these words in its message, and return the message."""

    def act():
        made = trainer(folder / "out", **changes)
        return made.train() if train else made

    with pytest.raises(kind) as error:
        act()
    message = str(error.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"the message lacks {missing}: {message}"
    return message


# --- the model


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_neither_a_model_nor_a_way_to_make_one(nothing_is_written, kind):
    """A RuntimeError in the reference, and a ValueError for those who think of it as a bad value."""
    with pytest.raises(kind, match=r"needs a model: pass model=.*model_init="):
        Trainer(args=arguments(nothing_is_written / "out"))
    assert not (nothing_is_written / "out").exists()


def test_both_a_model_and_a_way_to_make_one(nothing_is_written):
    refusal(ValueError, "model", "model_init", "one of them", folder=nothing_is_written, model=tiny(), model_init=tiny)


@pytest.mark.parametrize("returned", [None, 5])
def test_a_function_that_makes_no_model(nothing_is_written, returned):
    kind = RuntimeError if returned is None else (RuntimeError, TypeError)
    refusal(kind, "model_init", str(returned), folder=nothing_is_written, model_init=lambda: returned)


def test_a_function_that_wants_too_much(nothing_is_written):
    kind = (RuntimeError, TypeError)
    refusal(kind, "model_init", "2 arguments", "trial", folder=nothing_is_written, model_init=lambda a, b: tiny())


def test_a_model_without_a_loss(nothing_is_written):
    class Lossless(Tiny):
        def forward(self, x, labels=None):
            return {"logits": self.logits(x)}

    words = ["did not return a loss", "logits", "x, labels", "`loss`", "compute_loss"]
    refusal(ValueError, *words, folder=nothing_is_written, model=Lossless(), train=True)


# --- the types, parameter by parameter

CALLABLES = ["model_init", "compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics", "data_collator"]
NOT_CALLABLE = [5, "accuracy", {"a": 1}]
WRONG = [
    *[(name, value) for name in CALLABLES for value in NOT_CALLABLE],
    *[("model", value) for value in (5, "gpt2", {"a": 1}, Tiny)],
    *[("args", value) for value in (5, "folder", {"output_dir": "x"}, lightrainer.TrainingArguments, Tiny())],
    *[("train_dataset", value) for value in (5, "imdb", Tiny)],
    *[("eval_dataset", value) for value in (5, Tiny)],
    ("eval_dataset", {"test": 5}),
    *[("callbacks", value) for value in (5, "print", lightrainer.PrinterCallback(), lightrainer.PrinterCallback)],
    *[("callbacks", [value]) for value in (5, "print", Tiny())],
    *[
        ("optimizers", value)
        for value in (None, 5, "adam", torch.optim.SGD(Tiny().parameters(), lr=0.1), ("adam", None))
    ],
    *[("optimizer_cls_and_kwargs", value) for value in (5, "adam", torch.optim.SGD, (torch.optim.SGD,), ("adam", {}))],
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={value!r:.40}" for name, value in WRONG])
def test_the_wrong_type(nothing_is_written, name, value):
    """A TypeError that names the parameter and what it is instead, at construction, not somewhere in the training."""
    given = {"model": None, name: value} if name == "model_init" else {name: value}
    message = refusal(TypeError, folder=nothing_is_written, **given)
    assert re.search(rf"\b{name}\b|\bcallback\b" if name == "callbacks" else rf"\b{name}\b", message), message
    parts = [value, *(value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ())]
    assert any(type(part).__name__ in message or repr(part)[:20] in message for part in parts), message


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class OwnStep(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


@pytest.mark.parametrize("cls", [OwnLoss, OwnStep])
def test_a_loss_function_is_refused_where_it_would_be_called(tmp_path, cls):
    """Not where somebody else may see to the loss: there any value that is not None says how it is scaled."""
    made = trainer(tmp_path, cls, compute_loss_func="not None")
    with pytest.raises(TypeError, match=r"compute_loss_func.*'not None'.*super\(\).compute_loss"):
        made.train()


def test_every_parameter_is_tried_with_the_wrong_type():
    """`processing_class` may be anything: whoever has a use for it looks at its methods."""
    documented = set(inspect.signature(Trainer).parameters)
    assert {name for name, _ in WRONG} == documented - {"processing_class"}


def test_all_wrong_types_are_told_at_once(nothing_is_written):
    refusal(
        TypeError,
        *("data_collator", "compute_metrics", "train_dataset", "callbacks"),
        folder=nothing_is_written,
        **dict.fromkeys(("data_collator", "compute_metrics", "train_dataset", "callbacks"), 5),
    )


def test_a_collator_of_an_old_script_is_told_which_method_to_pass(nothing_is_written):
    class Old:
        def collate_batch(self, features):
            return features

    refusal(TypeError, "data_collator", "collate_batch", folder=nothing_is_written, data_collator=Old())


def test_a_parameter_that_does_not_exist(nothing_is_written):
    with pytest.raises(TypeError, match="tokenizer"):
        Trainer(tiny(), arguments(nothing_is_written), tokenizer=object())


# --- values that do not go together


def test_an_iterable_without_max_steps(nothing_is_written):
    words = ["train_dataset", "Stream", "no length", "max_steps is -1", "Set max_steps"]
    refusal(ValueError, *words, folder=nothing_is_written, train_dataset=Stream(points()))


def test_evaluation_without_data(nothing_is_written):
    words = ["eval_strategy is 'steps'", "eval_dataset"]
    refusal(ValueError, *words, folder=nothing_is_written, eval_dataset=None, eval_strategy="steps", eval_steps=2)


def test_an_optimizer_together_with_model_init(nothing_is_written):
    for optimizers in [
        (torch.optim.SGD(tiny().parameters(), lr=0.1), None),
        (None, torch.optim.lr_scheduler.StepLR(torch.optim.SGD(tiny().parameters(), lr=0.1), 1)),
    ]:
        words = ["optimizers", "model_init", "optimizer_cls_and_kwargs"]
        refusal(RuntimeError, *words, folder=nothing_is_written, model_init=tiny, optimizers=optimizers)


def test_two_kinds_of_optimizer(nothing_is_written):
    model = tiny()
    given = {
        "optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None),
        "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1}),
    }
    words = ["optimizers", "optimizer_cls_and_kwargs", "one of them"]
    refusal(RuntimeError, *words, folder=nothing_is_written, model=model, **given)


class CallsItLabel(Tiny):
    def forward(self, x, label=None):
        return super().forward(x, label)


@pytest.mark.parametrize("how", ["model", "model_init", "label_names"])
def test_inputs_called_label_with_the_default_collator(nothing_is_written, how):
    """The default collator makes `labels` out of `label`, so the model would never see it."""
    given = {"model": {"model": CallsItLabel()}, "model_init": {"model_init": lambda: CallsItLabel()}}
    changes = given.get(how, {"label_names": ["label"]})
    refusal(ValueError, "'label'", "'labels'", "data_collator", folder=nothing_is_written, **changes)


def test_inputs_called_label_with_a_collator_of_the_user(tmp_path):
    def collate(items):
        return {"x": torch.stack([item["x"] for item in items]), "label": torch.stack([i["labels"] for i in items])}

    trained = trainer(tmp_path, model=CallsItLabel(), data_collator=collate, remove_unused_columns=False)
    assert trained.train().global_step == 4


def test_metrics_by_batch_need_to_be_told_when_to_sum_up(nothing_is_written):
    def compute_metrics(prediction):
        return {}

    words = ["batch_eval_metrics", "compute_metrics", "compute_result"]
    given = {"compute_metrics": compute_metrics, "batch_eval_metrics": True}
    refusal(ValueError, *words, folder=nothing_is_written, **given)


def test_the_best_model_by_no_metric(nothing_is_written):
    """The arguments set a default, which may be taken away afterwards."""
    args = arguments(nothing_is_written, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    args.metric_for_best_model = None
    refusal(ValueError, "load_best_model_at_end", "metric_for_best_model", folder=nothing_is_written, args=args)


def test_all_values_that_cannot_be_are_told_at_once(nothing_is_written):
    refusal(
        ValueError,
        *("max_steps", "eval_dataset", "compute_result"),
        folder=nothing_is_written,
        train_dataset=Stream([]),
        eval_dataset=None,
        eval_strategy="epoch",
        compute_metrics=lambda prediction: {},
        batch_eval_metrics=True,
    )


# --- the data, when it is needed


@pytest.mark.parametrize("empty", [[], torch.utils.data.TensorDataset(torch.empty(0, 8))])
def test_an_empty_dataset(nothing_is_written, empty):
    words = ["train_dataset is empty", "length 0"]
    refusal(ValueError, *words, folder=nothing_is_written, train_dataset=empty, train=True)


def test_a_dataset_smaller_than_a_batch_that_must_be_full(nothing_is_written):
    given = {"train_dataset": points(3), "dataloader_drop_last": True}
    refusal(ValueError, "training data", "no batch", folder=nothing_is_written, train=True, **given)


def test_an_empty_iterable(nothing_is_written):
    given = {"train_dataset": Stream([]), "max_steps": 4}
    refusal(ValueError, "training data is empty", "no batch", folder=nothing_is_written, train=True, **given)


def test_no_training_data(nothing_is_written):
    words = ["train()", "train_dataset=..."]
    refusal(ValueError, *words, folder=nothing_is_written, train_dataset=None, train=True)


def test_no_evaluation_data(nothing_is_written):
    made = trainer(nothing_is_written, eval_dataset=None)
    with pytest.raises(ValueError, match="eval_dataset="):
        made.evaluate()


@pytest.mark.parametrize("own", [{"near": points(4), "far": points(4)}, points(4)], ids=["names", "no names"])
def test_evaluation_data_of_an_unknown_name(nothing_is_written, own):
    made = trainer(nothing_is_written, eval_dataset=own)
    with pytest.raises(ValueError, match=r"no eval_dataset called 'nearr'.*(near, far|no names)"):
        made.evaluate("nearr")


def test_an_empty_set_to_evaluate_on(nothing_is_written):
    """No samples give no loss, as in the reference, and no warning about an object that the user never heard of."""
    made = trainer(nothing_is_written)
    found = made.evaluate([])
    assert "eval_loss" not in found
    assert found["eval_samples_per_second"] == 0
    assert made.predict([]).predictions is None


def test_a_name_in_the_place_of_the_evaluation_data(nothing_is_written):
    """Libraries that evaluate otherwise pass one; only who evaluates on it is told."""
    made = trainer(nothing_is_written, eval_dataset="dummy")
    with pytest.raises(ValueError, match="no eval_dataset called 'dummy'"):
        made.evaluate()
    with pytest.raises(TypeError, match="eval_dataset is 'dummy', a name"):
        made.get_eval_dataloader()


def test_several_sets_to_train_on(nothing_is_written):
    """Libraries that pass a dict override get_train_dataloader; nobody else can train on it."""
    made = trainer(nothing_is_written, train_dataset={"first": points(), "second": points()})
    with pytest.raises(TypeError, match=r"train_dataset is a dict \(first, second\)"):
        made.train()
