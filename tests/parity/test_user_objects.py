"""What a training calls of the user's objects: the same methods, as often, with arguments of the
same kind.

Model, optimizer, schedule, datasets, sampler, collator, tokenizer, metric and callback note every
call of a method. Both libraries run a training with evaluations and checkpoints, an evaluation, a
prediction, a save and a resumption. Each difference stands in `INTENDED`, with its reason.
"""

import collections
import functools
import threading
import types
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, Sampler
from transformers import BertConfig, BertForSequenceClassification

from helpers.devices.pretended_cuda import trains_on_device
from helpers.parity.parity_datasets import points
from helpers.parity.parity_models import Classifier

# --- Objects that note their calls.


class Calls:
    """The calls of all objects of a run, by phase."""

    def __init__(self):
        self.noted = []
        self.phases = {}

    def phase(self, name, function):
        """Run a function, and keep the calls made in it under a name."""
        self.noted.clear()
        result = function()
        self.phases[name] = list(self.noted)
        return result


def describe_value(value):
    """The kind of an argument: numbers and None as they are, classes of either library under one
    name.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    kinds = {
        "AcceleratedOptimizer": "Switching",
        "DataLoaderShard": "Loader",
        "EpochLoader": "Loader",
    }
    kinds["TrackedItems"] = "Tensor"  # a subclass, which notes whether a loss was divided by it
    name = type(value).__name__
    return kinds.get(name, name)


def noting(calls, owner, name, original):
    """A method that notes its call, unless another method of the same object makes it."""

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        depths = vars(self).setdefault("depths_of_calls", collections.Counter())
        thread = threading.get_ident()
        if depths[thread] == 0:
            # None is the default of every parameter that gets it.
            positional = tuple(describe_value(value) for value in args if value is not None)
            # Newer versions also pass the default of `is_main_process`.
            named = tuple(
                (key, describe_value(value))
                for key, value in kwargs.items()
                if value is not None and key != "is_main_process"
            )
            calls.noted.append((f"{owner}.{name}", positional, named))
        depths[thread] += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            depths[thread] -= 1

    method.__module__ = __name__  # a method of a script, not of the library that it calls
    return method


NOT_NOTED = {
    "__init__",
    "__new__",
    "__getattr__",
    "__setattr__",
    "__delattr__",
    "__dir__",
    "__repr__",
    "__hash__",
}
NOT_NOTED |= {
    "__getattribute__",
    "__eq__",
    "__setstate__",
    "__getstate__",
    "__class_getitem__",
    "__init_subclass__",
}
NOT_NOTED |= {"get_extra_state", "set_extra_state"}  # torch looks whether they are overridden


def noted(calls, owner, base):
    """A subclass whose public methods, and those such as `__len__`, note their calls."""
    methods = {}
    for ancestor in base.__mro__[:-1]:
        for name, value in vars(ancestor).items():
            is_public = not name.startswith("_") or (name.startswith("__") and name.endswith("__"))
            if (
                is_public
                and name not in methods
                and name not in NOT_NOTED
                and isinstance(value, types.FunctionType)
            ):
                methods[name] = noting(calls, owner, name, getattr(base, name))
    return type(base.__name__, (base,), methods)


class Tokens(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = [
            {"input_ids": torch.randint(1, 20, (5,), generator=generator), "labels": index % 3}
            for index in range(count)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class TokensAtOnce(Tokens):
    def __getitems__(self, indices):
        return [self.rows[index] for index in indices]


class Reversed(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count - 1, -1, -1))

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        pass


class Stacking:
    def __call__(self, rows):
        return {
            "input_ids": torch.stack([row["input_ids"] for row in rows]),
            "labels": torch.tensor([row["labels"] for row in rows]),
        }


class Tokenizer:
    model_input_names = ("input_ids",)
    pad_token_id = 0

    def save_pretrained(self, folder, **kwargs):
        Path(folder, "tokenizer.json").write_text("{}")

    def pad(self, features, **kwargs):
        raise NotImplementedError

    def decode(self, ids):
        return ""

    def __len__(self):
        return 20


class Switching(torch.optim.Adam):
    def train(self):
        pass

    def eval(self):
        pass


class Metric:
    def __call__(self, prediction):
        return {"score": 1.0}


def trainer_of(api, calls, folder, dataset):
    """A trainer whose objects all note their calls, and a test set."""
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = noted(calls, "model", BertForSequenceClassification)(config)
    optimizer = noted(calls, "optimizer", Switching)(model.parameters(), lr=0.01)
    schedule = noted(calls, "schedule", LambdaLR)(optimizer, lambda step: 1.0)

    class WithSampler(api.Trainer):
        def _get_train_sampler(self, *args):
            return noted(calls, "sampler", Reversed)(12)

    arguments = api.TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        logging_steps=1,
        load_best_model_at_end=True,
        include_num_input_tokens_seen="all",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not trains_on_device(),
        dataloader_pin_memory=False,
    )
    trainer = WithSampler(
        model,
        arguments,
        train_dataset=noted(calls, "train_dataset", dataset)(12, seed=1),
        eval_dataset=noted(calls, "eval_dataset", dataset)(6, seed=2),
        data_collator=noted(calls, "collator", Stacking)(),
        processing_class=noted(calls, "tokenizer", Tokenizer)(),
        compute_metrics=noted(calls, "metric", Metric)(),
        callbacks=[noted(calls, "callback", api.TrainerCallback)()],
        optimizers=(optimizer, schedule),
    )
    return trainer, noted(calls, "test_dataset", dataset)(5, seed=3)


def calls_of(api, folder, dataset):
    """All calls of one library, by phase."""
    calls = Calls()
    trainer, test = calls.phase("construction", lambda: trainer_of(api, calls, folder, dataset))
    calls.phase("training", trainer.train)
    calls.phase("evaluation", trainer.evaluate)
    calls.phase("prediction", lambda: trainer.predict(test))
    calls.phase("save", lambda: trainer.save_model(str(folder / "model")))
    trainer, _ = trainer_of(api, calls, folder, dataset)
    calls.phase(
        "resumption", lambda: trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    )
    return calls.phases


# --- The comparison.

QUERIES = {
    *(
        f"model.{name}"
        for name in ("modules", "named_modules", "children", "named_children", "buffers")
    ),
    *(
        f"model.{name}"
        for name in ("parameters", "named_parameters", "named_buffers", "state_dict")
    ),
    *(f"{name}_dataset.__len__" for name in ("train", "eval", "test")),
    "sampler.__len__",
    "tokenizer.__len__",
}
"""Methods that change nothing; how often they are asked may differ, but the reference's
questions are asked.
"""

PREPARED = (
    "accelerate reads and loads the state of an optimizer once, to move it to the device; "
    "Lightning moves it"
)
INTENDED = {
    (
        "training",
        "model.to",
    ): "the model is moved when the Trainer is made, and its parts by Lightning at the start",
    (
        "resumption",
        "model.to",
    ): "the model is moved when the Trainer is made, and its parts by Lightning at the start",
    ("training", "optimizer.state_dict"): PREPARED,
    ("training", "optimizer.load_state_dict"): PREPARED,
    ("resumption", "optimizer.state_dict"): PREPARED,
    ("resumption", "optimizer.load_state_dict"): PREPARED,
}
"""Phase and method of each difference, and why it is one."""


@pytest.fixture(scope="module", params=[Tokens, TokensAtOnce], ids=["by item", "by batch"])
def both(request, reference, ours, tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    expected = calls_of(reference, folder / "reference", request.param)
    return expected, calls_of(ours, folder / "ours", request.param)


PHASES = ["construction", "training", "evaluation", "prediction", "save", "resumption"]


@pytest.mark.parametrize("phase", PHASES)
def test_user_objects_are_called_as_in_the_reference(both, phase):
    expected, actual = (collections.Counter(phases[phase]) for phases in both)
    differing = {call for call in expected | actual if expected[call] != actual[call]}
    unexplained = {
        call: f"{expected[call]} times in the reference, {actual[call]} times here"
        for call in differing
        if call[0] not in QUERIES and (phase, call[0]) not in INTENDED
    }
    assert not unexplained


@pytest.mark.parametrize("phase", PHASES)
def test_commands_come_in_the_order_of_the_reference(both, phase):
    """Training and evaluation mode, steps, events and batches of one training, in one list."""
    left_out = {method for when, method in INTENDED if when == phase} | QUERIES

    def commands(calls):
        return [call for call in calls if call[0] not in left_out]

    expected, actual = (commands(phases[phase]) for phases in both)
    assert actual == expected


@pytest.mark.parametrize("phase", ["training", "evaluation", "prediction"])
def test_lengths_of_datasets_are_asked_as_in_the_reference(both, phase):
    expected, actual = ({call[0] for call in phases[phase]} & QUERIES for phases in both)
    lengths = {name for name in expected if name.endswith("__len__")}
    assert lengths <= actual


def test_user_objects_intended_differences_exist(both):
    """An exception that is not needed any more is to be removed."""
    differing = {
        (phase, call[0])
        for phase in PHASES
        for call in collections.Counter(both[0][phase]) - collections.Counter(both[1][phase])
    }
    assert set(INTENDED) <= differing


def test_notes_tell_another_call_apart():
    """The negative control: one more call, or an argument of another kind, is seen."""
    calls = Calls()
    tokenizer = noted(calls, "tokenizer", Tokenizer)()
    calls.phase("text", lambda: tokenizer.decode("x"))
    calls.phase("path", lambda: tokenizer.decode(Path("x")))
    assert calls.phases["text"] == [("tokenizer.decode", ("str",), ())]
    assert calls.phases["path"] == [("tokenizer.decode", ("PosixPath",), ())]


# --- Modes that a model sets itself.


class Frozen(Classifier):
    """Keeps its batch norm in evaluation mode, as models with frozen statistics do."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.BatchNorm1d(8)
        self.modes = []

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x, labels=None):
        self.modes.append((self.training, self.frozen.training, self.dropout.training))
        return super().forward(self.frozen(x), labels)


class FrozenBelow(nn.Module):
    """Has such a model as a part."""

    def __init__(self):
        super().__init__()
        self.inner = Frozen()

    @property
    def modes(self):
        return self.inner.modes

    def forward(self, x, labels=None):
        return self.inner(x, labels)


class MonteCarlo(Frozen):
    """Keeps its dropout active in evaluations."""

    def train(self, mode=True):
        return nn.Module.train(self, mode)

    def eval(self):
        super().eval()
        self.dropout.train()
        return self


def frozen_as_attribute():
    """A model whose class overrides nothing: its `train` is an attribute of the object."""

    class Plain(Frozen):
        train = nn.Module.train

    model = Plain()

    def train(mode=True):
        nn.Module.train(model, mode)
        model.frozen.eval()
        return model

    model.train = train
    return model


MODELS = {
    "train": Frozen,
    "train of a part": FrozenBelow,
    "eval": MonteCarlo,
    "attribute": frozen_as_attribute,
}


def modes_of(api, model, folder, callbacks=()):
    """Modes of each forward pass of a training with evaluations, an evaluation and a prediction;
    its weights.
    """
    arguments = api.TrainingArguments(
        str(folder),
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=0.1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not trains_on_device(),
    )
    trainer = api.Trainer(
        model,
        arguments,
        train_dataset=points(12),
        eval_dataset=points(6, seed=3),
        callbacks=list(callbacks),
    )
    trainer.train()
    trainer.evaluate()
    trainer.predict(points(5, seed=4))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return list(model.modes), weights


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "with_lightning_callback", [False, True], ids=["alone", "Lightning callback"]
)
def test_modes_that_a_model_sets_itself_stay(
    reference, ours, tmp_path, name, with_lightning_callback
):
    from lightning.pytorch.callbacks import Callback

    torch.manual_seed(5)
    expected, weights = modes_of(reference, MODELS[name](), tmp_path / "reference")
    torch.manual_seed(5)
    callbacks = [Callback()] if with_lightning_callback else []
    actual, own_weights = modes_of(ours, MODELS[name](), tmp_path / "ours", callbacks)
    assert actual == expected
    assert len(set(expected)) > 1, "training and evaluation do not differ"
    for key, value in weights.items():
        assert torch.equal(value, own_weights[key]), key


def test_train_replaced_during_a_training_is_called_from_the_next_epoch_on(
    reference, ours, tmp_path
):
    """The model is inspected once an epoch, not at every step."""

    def frozen_in_epochs(api):
        class Freezing(api.TrainerCallback):
            def on_epoch_begin(self, args, state, control, model, **kwargs):
                if state.epoch >= 1:
                    model.train = lambda mode=True: nn.Module.train(model, False)

        model = Frozen()
        modes_of(api, model, tmp_path / api.__name__, [Freezing()])
        return model.modes

    assert frozen_in_epochs(ours) == frozen_in_epochs(reference)


# torch warns of what Lightning does with its trees; the others are advice.
@pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:.*in eval mode",
)
@pytest.mark.parametrize("name", ["train", "train of a part", "attribute"])
def test_plain_lightning_keeps_the_modes_of_a_model(ours, name):
    """Lightning calls no `train` in a training; the module calls that of the model when the
    training begins.
    """
    import lightning

    model = MODELS[name]()
    module = ours.LossModule(model)
    loader = torch.utils.data.DataLoader(points(8), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="gpu" if trains_on_device() else "cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, loader)
    inner = getattr(model, "inner", model)
    assert inner.frozen.running_mean.tolist() == [0.0] * 8
    assert {modes[1] for modes in model.modes} == {False}
    assert {modes[0] for modes in model.modes} == {False, True}


# --- Methods with fewer parameters than today's, and classes of a script's own.


class RecursiveParameters(Classifier):
    """As before torch 2.0."""

    def named_parameters(self, recurse=True):
        return list(super().named_parameters(recurse=recurse))


class PrefixedParameters(Classifier):
    def named_parameters(self, prefix="", recurse=True):
        return super().named_parameters(prefix, recurse)


class PlainParameters(Classifier):
    def parameters(self):
        return list(super().parameters())

    def named_buffers(self, prefix="", recurse=True):
        return super().named_buffers(prefix, recurse)

    def modules(self):
        return list(super().modules())


class PlainStates(Classifier):
    def state_dict(self):
        return super().state_dict()

    def load_state_dict(self, state, *options):
        return super().load_state_dict(state, *options)


class PlainModes(Classifier):
    """Returns nothing where torch returns the module."""

    def train(self, mode=True):
        super().train(mode)

    def eval(self):
        super().eval()

    def to(self, device):
        return super().to(device)

    def zero_grad(self):
        super().zero_grad()


class CountsItself(Classifier):
    """Has another number of parameters at each question."""

    main_input_name = "x"
    asked = 0

    def num_parameters(self, exclude_embeddings=False):
        self.asked += 1
        return self.asked


class Empty(Classifier):
    """Is false, as a container without entries is."""

    def __len__(self):
        return 0


NARROW = [
    RecursiveParameters,
    PrefixedParameters,
    PlainParameters,
    PlainStates,
    PlainModes,
    CountsItself,
    Empty,
]


def resumed(api, folder, model, own=lambda model: {}, **parts):
    """A training that is resumed in its middle, with the best model at its end: the trainer, and
    its weights.
    """
    for steps, checkpoint in ((2, None), (4, True)):
        torch.manual_seed(3)
        instance = model()
        arguments = api.TrainingArguments(
            str(folder),
            max_steps=steps,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            logging_steps=1,
            load_best_model_at_end=True,
            per_device_train_batch_size=4,
            learning_rate=0.05,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not trains_on_device(),
        )
        data = {"train_dataset": points(12), "eval_dataset": points(6, seed=3)}
        trainer = api.Trainer(instance, arguments, **{**data, **parts, **own(instance)})
        trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def assert_same_training(expected, actual):
    """Both learned the same, at the same rates."""
    rates = [
        [entry.get("learning_rate") for entry in trainer.state.log_history if "loss" in entry]
        for trainer in (expected, actual)
    ]
    assert rates[0] == rates[1]
    assert len(rates[0]) == 4
    assert expected.state.total_flos == actual.state.total_flos
    weights = dict(nn.Module.named_parameters(expected.model))
    for name, value in nn.Module.named_parameters(actual.model):
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("model", NARROW)
def test_models_with_narrower_methods_train_as_in_the_reference(reference, ours, tmp_path, model):
    expected = resumed(reference, tmp_path / "reference", model)
    assert_same_training(expected, resumed(ours, tmp_path / "ours", model))


class StepNeedsClosure(torch.optim.SGD):
    """As optimizers were before the closure was optional."""

    def step(self, closure):
        return super().step(closure)


class StepOfAnotherName(torch.optim.SGD):
    def step(self, loss_function=None):
        return super().step(loss_function)


class NotOfTorch:
    """An optimizer that is not derived from torch's and has its own state format."""

    def __init__(self, parameters, lr):
        self.param_groups = [{"params": list(parameters), "lr": lr}]
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter -= self.param_groups[0]["lr"] / self.steps * parameter.grad

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Lookahead(torch.optim.Optimizer):
    """A wrapper around another optimizer, to which the schedule is attached."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups = inner.param_groups
        self.state = inner.state
        self.defaults = inner.defaults

    def step(self, closure=None):
        return self.inner.step(closure)

    def state_dict(self):
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        self.param_groups = self.inner.param_groups


class Harmonic:
    """A schedule without the attribute `optimizer`, and without a dict of its attributes."""

    __slots__ = ("attached_to", "steps")

    def __init__(self, optimizer):
        self.attached_to = optimizer
        self.steps = 0

    def step(self):
        self.steps += 1
        for group in self.attached_to.param_groups:
            group["lr"] = 0.1 / (1 + self.steps)

    def get_last_lr(self):
        return [group["lr"] for group in self.attached_to.param_groups]

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Remembering(LambdaLR):
    """A schedule whose state grows with each step."""

    def __init__(self, optimizer):
        self.rates = []
        super().__init__(optimizer, lambda step: 1 / (step + 1))

    def step(self):
        super().step()
        self.rates.append(self.get_last_lr()[0])


def halving(optimizer):
    return LambdaLR(optimizer, lambda step: 0.5**step)


def sgd_of(kind):
    return lambda model: kind(model.parameters(), lr=0.1)


def lookahead_with_inner_schedule(model):
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Lookahead(inner), halving(inner)


def sgd_with_replaced_step(model):
    """As `optimizer.step = torch.compile(optimizer.step)` leaves it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    original = optimizer.step
    optimizer.step = lambda *args, **kwargs: original(*args, **kwargs)
    return optimizer, None


def pair(make_optimizer, make_schedule):
    def make(model):
        optimizer = make_optimizer(model)
        return optimizer, make_schedule(optimizer)

    return make


OPTIMIZERS = {
    "step with a required closure": pair(sgd_of(StepNeedsClosure), halving),
    "step with another name": pair(sgd_of(StepOfAnotherName), halving),
    "a function as step": sgd_with_replaced_step,
    "an optimizer not of torch": pair(sgd_of(NotOfTorch), Harmonic),
    "a custom schedule class": pair(sgd_of(torch.optim.SGD), Harmonic),
    "a schedule whose state grows": pair(sgd_of(torch.optim.SGD), Remembering),
    "a schedule of the inner optimizer": lookahead_with_inner_schedule,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_schedules_of_own_classes_train_as_in_the_reference(
    reference, ours, tmp_path, name
):
    make_parts = lambda model: {"optimizers": OPTIMIZERS[name](model)}
    expected = resumed(reference, tmp_path / "reference", Classifier, make_parts)
    assert_same_training(expected, resumed(ours, tmp_path / "ours", Classifier, make_parts))


# torch warns too, of a step of the schedule before one of its optimizer.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step\\(\\)` before")
def test_schedule_of_another_optimizer_has_no_effect_and_warns(reference, ours, tmp_path, caplog):
    def own(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        other = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        return {"optimizers": (optimizer, halving(other))}

    expected = resumed(reference, tmp_path / "reference", Classifier, own)
    assert_same_training(expected, resumed(ours, tmp_path / "ours", Classifier, own))
    assert "LambdaLR changes the learning rates of another optimizer" in caplog.text


def test_optimizer_inside_of_the_optimizer_is_that_which_was_passed(reference, ours, tmp_path):
    """`trainer.optimizer.optimizer`, as scripts read it since accelerate wraps optimizers."""
    for api in (reference, ours):
        passed = []

        def make_parts(model, passed=passed):
            passed[:] = [torch.optim.SGD(model.parameters(), lr=0.1)]
            return {"optimizers": (passed[0], None)}

        trainer = resumed(api, tmp_path / api.__name__, Classifier, make_parts)
        assert trainer.optimizer.optimizer is passed[0]
        assert trainer.callback_handler.optimizer.optimizer is passed[0]
    another = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    assert not hasattr(another, "optimizer"), "code that unwraps optimizers in a loop has to end"


class PadsOtherwise:
    """A tokenizer whose `pad` is another method than that of transformers, and that is false: it
    has no tokens yet.
    """

    def __len__(self):
        return 0

    def pad(self, ids, length):
        raise AssertionError("it was called")

    def save_pretrained(self, folder):
        Path(folder + "/vocabulary.txt").write_text("")


def test_tokenizer_of_a_script_is_saved_and_not_asked_to_pad(reference, ours, tmp_path):
    runs = {}
    for api in (reference, ours):
        folder = tmp_path / api.__name__
        runs[api.__name__] = resumed(api, folder, Classifier, processing_class=PadsOtherwise())
        assert (folder / "checkpoint-2/vocabulary.txt").exists()
    assert_same_training(*runs.values())
