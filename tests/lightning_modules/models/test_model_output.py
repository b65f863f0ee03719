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
        made = make(kind)
    except Exception as error:
        return type(error).__name__
    seen = [
        list(made.items()),
        made.to_tuple(),
        [made.first, made.second, made.third],
        made[:1],
        len(made),
    ]
    seen += [
        "first" in made,
        _pytree.tree_flatten(made)[0],
        pickle.loads(pickle.dumps(made)).to_tuple(),
    ]
    return [*map(str, seen), str(copy.deepcopy(made).to_tuple())]


@pytest.mark.parametrize("number", range(len(MADE)))
def test_model_output_constructors(number):
    assert facts(MADE[number], Ours) == facts(MADE[number], Theirs)


def test_keys_attributes_and_indices_are_one():
    for kind in (Ours, Theirs):
        made = kind(first=T)
        made.second = 2
        made["third"] = 3
        assert (made["second"], made.third, made[1], made[-1], made[1:]) == (2, 3, 2, 3, (2, 3))
        made.third = None  # a value that is there stays, as a key
        assert list(made) == ["first", "second", "third"]
        assert made.get("nothing") is None
        with pytest.raises(KeyError):
            made["nothing"]
        with pytest.raises(IndexError):
            made[5]


@pytest.mark.parametrize(
    "use", [lambda o: o.pop("first"), lambda o: o.update(a=1), lambda o: o.setdefault("a", 1)]
)
def test_fields_are_fixed(use):
    for kind in (Ours, Theirs):
        with pytest.raises(Exception, match=r"(?i)cannot"):
            use(kind(first=1))
        made = kind(first=1)
        with pytest.raises(Exception, match=r"(?i)cannot"):
            del made["first"]


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
