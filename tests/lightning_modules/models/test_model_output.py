"""`ModelOutput`: ours and the reference's, made and used in the same ways."""

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils import _pytree
from transformers.utils import ModelOutput as Reference

from lightrainer.lightning_modules.models.model_output import ModelOutput


@dataclass
class Ours(ModelOutput):
    first: Any = None
    second: Any = None
    third: Any = None


@dataclass
class Theirs(Reference):
    first: Any = None
    second: Any = None
    third: Any = None


T = torch.tensor([1.0, 2.0])
FIRST = [
    {"first": T, "third": 4},
    [("second", 1), ("third", None)],
    (T, T),
    "text",
    5,
    [],
    (),
    {},
    {"first": None},
]
FIRST += [
    {"other": 1},
    [("first", 1), 3],
    [["second", 1]],
    ["ab"],
    range(2),
    {1: 2},
    T.numpy(),
    {"first": 1, 2: 3},
]
MADE = [
    lambda kind: kind(first=T, third=3),
    lambda kind: kind(T, T + 1),
    lambda kind: kind([T, T], None, 2),
    lambda kind: kind(),
    lambda kind: kind(zip(["second"], [1], strict=True)),
    *(lambda kind, given=given: kind(given) for given in FIRST),
]


def facts(make, kind):
    try:
        output = make(kind)
    except Exception as error:
        return type(error).__name__
    results = [
        list(output.items()),
        output.to_tuple(),
        [output.first, output.second, output.third],
        output[:1],
        len(output),
    ]
    results += [
        "first" in output,
        _pytree.tree_flatten(output)[0],
        pickle.loads(pickle.dumps(output)).to_tuple(),
    ]
    return [*map(str, results), str(copy.deepcopy(output).to_tuple())]


@pytest.mark.parametrize("number", range(len(MADE)))
def test_model_output_constructors(number):
    assert facts(MADE[number], Ours) == facts(MADE[number], Theirs)


def test_keys_attributes_and_indices_are_one():
    for kind in (Ours, Theirs):
        output = kind(first=T)
        output.second = 2
        output["third"] = 3
        assert (output["second"], output.third, output[1], output[-1], output[1:]) == (
            2,
            3,
            2,
            3,
            (2, 3),
        )
        output.third = None  # a value that is there stays, as a key
        assert list(output) == ["first", "second", "third"]
        assert output.get("nothing") is None
        with pytest.raises(KeyError):
            output["nothing"]
        with pytest.raises(IndexError):
            output[5]


@pytest.mark.parametrize(
    "use", [lambda o: o.pop("first"), lambda o: o.update(a=1), lambda o: o.setdefault("a", 1)]
)
def test_fields_are_fixed(use):
    for kind in (Ours, Theirs):
        with pytest.raises(Exception, match=r"(?i)cannot"):
            use(kind(first=1))
        output = kind(first=1)
        with pytest.raises(Exception, match=r"(?i)cannot"):
            del output["first"]


@dataclass
class WithMore(Ours):
    fourth: Any = field(default=None)


def test_torch_sees_into_them_and_makes_them_again():
    leaves, spec = _pytree.tree_flatten({"x": WithMore(first=T, fourth=(T, 1))})
    assert len(leaves) == 3
    again = _pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec)["x"]
    assert type(again) is WithMore
    assert torch.equal(again.first, T * 2)
    assert again.fourth[1] == 2
