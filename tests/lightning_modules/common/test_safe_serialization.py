"""Nested data survives a round trip through tensors and plain values, which is all that a
checkpoint may hold.
"""

import collections
import enum
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from helpers.comparing.bit_differences import same_bits
from lightrainer.lightning_modules.checkpoints import load_torch, save_torch
from lightrainer.lightning_modules.common.safe_serialization import (
    UnsafeValueError,
    from_plain,
    to_plain,
)


class Pair(NamedTuple):
    left: Any
    right: Any


class Batch(collections.UserDict):
    pass


class Names(list):
    pass


class Colour(enum.Enum):
    RED = 1


class Settings(dict):
    """Its constructor takes something else than its contents."""

    def __init__(self, *, rate: float):
        super().__init__(rate=rate)


class Missing(dict):
    """Its constructor keeps no contents."""

    def __init__(self, default: object, **contents: object):
        super().__init__(contents)
        self.default = default


class Shape(tuple):
    def __new__(cls, *sizes: int):
        return super().__new__(cls, sizes)


class Rows(list):
    def __init__(self, count: int, start: int):
        super().__init__(range(start, start + count))


VALUES = [
    None,
    True,
    3,
    2.5,
    1j,
    "text",
    b"bytes",
    [1, [2, (3,)]],
    (),
    {"a": 1, 2: "b", (3, 4): {}},
]
VALUES += [
    {"kind": "mapping", "items": []},
    collections.OrderedDict(b=1, a=2),
    Batch({"x": [1]}),
    Names(["a"]),
    collections.defaultdict(int, {"a": 1}),
    collections.defaultdict(list, {"a": [collections.defaultdict(None, b=2)]}),
    collections.Counter("aab"),
    torch.Size([1, 2**40]),
    torch.bfloat16,
    torch.device("cpu"),
]
VALUES += [
    Pair(1, Pair([2], "c")),
    np.float32(1.5),
    np.int64(-3),
    np.bool_(True),
    list(range(-40, 40)),
]
VALUES += [tuple(range(80)), Names(range(80)), [*range(80), 2**70], [*range(80), True]]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(tmp_path, value):
    """With their types, and through a file that is read without unpickling anything."""
    save_torch(to_plain(value), tmp_path / "value.pt")
    restored = from_plain(load_torch(tmp_path / "value.pt"))
    assert restored == value
    assert type(restored) is type(value)
    assert repr(restored) == repr(value)


def test_tensors_and_arrays_come_back():
    tensors = [torch.arange(3), torch.zeros(2, 0), torch.tensor(1.5, dtype=torch.bfloat16)]
    for value in (*tensors, np.arange(6, dtype=np.uint16).reshape(2, 3)):
        assert same_bits(from_plain(to_plain({"x": [value]})), {"x": [value]})


def test_safe_serialization_stores_many_numbers_as_an_array():
    """Such as the state of Python's generator; one by one, as others wrote them, they are read
    too.
    """
    state = random.getstate()
    written = to_plain(state)
    assert type(written["items"][1]["items"]) is np.ndarray
    one_by_one = {"kind": "tuple", "class": None, "items": list(state[1])}
    for restored in (from_plain(written), (state[0], from_plain(one_by_one), state[2])):
        assert restored == state
        assert {type(number) for number in restored[1]} == {int}


NOT_PLAIN = [
    object(),
    {1},
    Colour.RED,
    np.array([None]),
    np.array(["a"]),
    np.zeros(2, [("a", int)]),
    np.datetime64("2026-01-01"),
    collections.defaultdict(lambda: 1),
    collections.defaultdict(Pair),
    torch.nn.Parameter(torch.ones(1)),
    print,
    {"a": [object()]},
]


@pytest.mark.parametrize("value", NOT_PLAIN, ids=lambda value: type(value).__name__)
def test_safe_serialization_refuses_other_values(value):
    """Not written down as something else."""
    with pytest.raises(UnsafeValueError, match="Colour" if value is Colour.RED else "plain value"):
        to_plain(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Settings(rate=0.1), {"rate": 0.1}),
        (Missing(0, a=1), {"a": 1}),
        (Shape(2, 3), (2, 3)),
        (Shape(2), (2,)),
        (Rows(2, 1), [1, 2]),
        (np.str_("a"), "a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_safe_serialization_falls_back_to_the_contents(tmp_path, value, plain):
    """Of a class that cannot be made from them alone, the contents come back in a plain one."""
    save_torch(to_plain(value), tmp_path / "value.pt")
    restored = from_plain(load_torch(tmp_path / "value.pt"))
    assert restored == plain
    assert type(restored) is type(plain)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["os", "system"], {}),
        (["subprocess", "Popen"], {}),
        (["nowhere.at_all", "Batch"], {}),
        (["collections", "OrderedDict"], collections.OrderedDict()),
    ],
)
def test_safe_serialization_file_makes_only_containers(named, expected):
    """A name in a file is looked up among the imported classes, and used if it is a kind of
    dict.
    """
    restored = from_plain({"kind": "mapping", "class": named, "items": []})
    assert restored == expected
    assert type(restored) is type(expected)


def test_safe_serialization_keeps_kinds_of_classes_apart():
    assert from_plain({"kind": "list", "class": ["collections", "OrderedDict"], "items": [1]}) == [
        1
    ]
    assert from_plain({"kind": "tuple", "class": ["builtins", "list"], "items": [1]}) == (1,)
