"""Generators that collators and datasets have for themselves are found, and brought back to where they were."""

import functools
import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from lightrainer.lightning_modules.common.safe_serialization import from_plain, to_plain
from lightrainer.lightning_modules.data.rng_discovery import own_states, restore_own


class Holder:
    def __init__(self, **things):
        vars(self).update(things)

    def method(self, samples):
        return samples


def torch_one():
    return torch.Generator().manual_seed(3)


MAKERS = {
    "torch": (torch_one, lambda g: float(torch.rand((), generator=g))),
    "numpy": (lambda: np.random.default_rng(3), lambda g: float(g.random())),
    "another of numpy": (lambda: np.random.Generator(np.random.MT19937(3)), lambda g: float(g.random())),
    "an old one of numpy": (lambda: np.random.RandomState(3), lambda g: float(g.randn())),
    "python": (lambda: random.Random(3), lambda g: g.gauss(0, 1)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_each_kind_goes_on_from_where_it_was(name):
    """Also in a checkpoint's plain values; and not from elsewhere."""
    make, draw = MAKERS[name]
    one = Holder(drawing=make())
    draw(one.drawing)
    states = from_plain(pickle.loads(pickle.dumps(to_plain(own_states(one)))))
    expected = [draw(one.drawing) for _ in range(3)]
    assert len(set(expected)) == 3
    other = Holder(drawing=make())
    restore_own(states, other)
    assert [draw(other.drawing) for _ in range(3)] == expected
    late = Holder(drawing=None)  # made when it is first needed
    restore_own(states, late)
    assert [draw(late.drawing) for _ in range(3)] == expected


def closing_over(generator):
    return lambda samples: generator and samples


PLACES = {
    "an attribute": lambda g: Holder(drawing=g),
    "an attribute of an attribute": lambda g: Holder(inner=Holder(drawing=g)),
    "a dict": lambda g: Holder(drawing={"one": {2: g}}),
    "a list": lambda g: Holder(transforms=[1, (Holder(drawing=g),)]),
    "a method": lambda g: Holder(drawing=g).method,
    "a partial function": lambda g: functools.partial(print, Holder(drawing=g)),
    "its keywords": lambda g: functools.partial(print, generator=g),
    "a closure": closing_over,
    "a subset": lambda g: Subset(type("Own", (Dataset,), {"__init__": lambda s: setattr(s, "drawing", g)})(), [0]),
}


@pytest.mark.parametrize("place", PLACES)
def test_it_is_found_where_it_is(place):
    one, other = torch_one(), torch_one()
    torch.rand(2, generator=one)
    states = own_states(None, PLACES[place](one))
    assert [state["root"] for state in states] == [1]
    restore_own(states, None, PLACES[place](other))
    assert torch.equal(one.get_state(), other.get_state())


def test_what_is_not_its_own():
    """Global generators are kept elsewhere; models, large lists and rings of objects are not looked through."""
    ring = Holder(drawing=torch_one())
    ring.ring = [ring, ring.drawing]
    assert len(own_states(ring)) == 1
    for thing in (torch.default_generator, random, random._inst, np.random, np.random.mtrand._rand, None, 3, print):
        assert own_states(thing, Holder(thing=thing)) == []
    assert own_states(torch.nn.Linear(1, 1), [torch_one()] * 17, Holder) == []
