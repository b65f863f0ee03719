"""Served names have the parameters, members and values of those of the reference."""

import dataclasses
import enum
import importlib
import inspect

import pytest

from lightrainer.interception.names import SERVED
from lightrainer.interception.stand_in.names import STAND_IN
from lightrainer.interception.targets import resolve

COLLATORS = "data.data_collator"
MODULES = [
    *(
        "trainer",
        "trainer_seq2seq",
        "trainer_utils",
        "trainer_pt_utils",
        "trainer_callback",
        "training_args",
    ),
    *("training_args_seq2seq", "optimization", "hf_argparser", COLLATORS),
]
OTHERWISE = {
    # Positions of these parameters do not matter: events are called by keywords.
    "trainer.CallbackHandler.on_evaluate(metrics)",
    "trainer.CallbackHandler.on_log(logs)",
    "trainer_callback.EarlyStoppingCallback.on_evaluate(metrics)",
    # "minimize" there; here a metric that is named has a direction of its own, so none is told from
    # "minimize".
    "trainer.Trainer.hyperparameter_search(direction)",
    "trainer_seq2seq.Seq2SeqTrainer.hyperparameter_search(direction)",
    # Of 5.23: what Trackio records stays on this machine unless a Space is named.
    "trainer.TrainingArguments(trackio_space_id)",
    "training_args_seq2seq.Seq2SeqTrainingArguments(trackio_space_id)",
    # A variable of a loop in the body of the class.
    "trainer.TrainingArguments.is_torch_greater_or_equal_than_2_8",
    "training_args_seq2seq.Seq2SeqTrainingArguments.is_torch_greater_or_equal_than_2_8",
    # accelerate's own class.
    "training_args.ParallelismConfig",
    "hf_argparser.string_to_bool",
}
"""Deliberate differences."""


def pairs():
    """Theirs and ours by name, each object once."""
    seen = set()
    for module in MODULES:
        theirs = importlib.import_module(f"transformers.{module}")
        for name, target in {**STAND_IN.get(module, {}), **SERVED.get(module, {})}.items():
            other = getattr(theirs, name, None)
            if callable(other) and id(other) not in seen:
                seen.add(id(other))
                yield f"{module}.{name}", other, resolve(target)


def signature(value):
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return None


def differing_parameters(path, theirs, ours):
    """Yield parameters that cannot be passed as in theirs, or have another default."""
    wanted, found = signature(theirs), signature(ours)
    if wanted is None or found is None:
        return
    names = [(parameter.name, parameter.kind) for parameter in wanted.parameters.values()]
    if [
        one for one in ((p.name, p.kind) for p in found.parameters.values()) if one in names
    ] != names:
        yield path
        return
    for name, parameter in wanted.parameters.items():
        if repr(parameter.default) != repr(found.parameters[name].default):
            yield f"{path}({name})"
    for name, parameter in found.parameters.items():
        packed = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in wanted.parameters and parameter.default is parameter.empty and not packed:
            yield f"{path}({name})"


def differing_members(path, theirs, ours):
    for name in (name for name in dir(theirs) if not name.startswith("_")):
        wanted, found = getattr(theirs, name), getattr(ours, name, NOTHING)
        if found is NOTHING or callable(wanted) != callable(found):
            yield f"{path}.{name}"
        elif callable(wanted) and not inspect.isclass(wanted):
            yield from differing_parameters(f"{path}.{name}", wanted, found)
    if issubclass(theirs, enum.Enum):
        values = {member.name: member.value for member in ours}  # later versions have more members
        if any(values.get(member.name) != member.value for member in theirs):
            yield path
    if dataclasses.is_dataclass(theirs):
        names = [field.name for field in dataclasses.fields(theirs)]
        if [field.name for field in dataclasses.fields(ours) if field.name in names] != names:
            yield path


NOTHING = object()


def test_parameters_and_members_are_those_of_the_reference():
    pytest.importorskip("transformers")
    found, compared = set(), 0
    for path, theirs, ours in pairs():
        compared += 1
        found.update(differing_parameters(path, theirs, ours))
        if inspect.isclass(theirs) and inspect.isclass(ours):
            found.update(differing_members(path, theirs, ours))
    assert compared > 80
    found = {name for name in found if not name.startswith("training_args.ParallelismConfig.")}
    assert sorted(found - OTHERWISE) == []
    assert sorted(OTHERWISE - found) == []
