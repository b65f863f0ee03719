"""States of dataset, collator and samplers: generators in attributes, and `state_dict` with
`load_state_dict`.
"""

import pickle
import random
from enum import Enum

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    StackDataset,
    Subset,
)

from lightrainer import DataCollatorForLanguageModeling
from lightrainer.lightning_modules.common.safe_serialization import from_plain, to_plain
from lightrainer.lightning_modules.data.collators.unused_columns import (
    RemoveColumnsCollator,
)
from lightrainer.lightning_modules.data.loader_state import ReplayLoader
from lightrainer.lightning_modules.data.loaders import rebuild_loader
from lightrainer.lightning_modules.data.stateful_parts import part_states, restore_parts


class Part(Dataset):
    """A dataset or collator with attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 4


class Stateful(Part):
    """One with a position."""

    def __init__(self, position=0):
        self.position = [position]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def seeded():
    return torch.Generator().manual_seed(3)


def through_a_checkpoint(states):
    return from_plain(pickle.loads(pickle.dumps(to_plain(states))))


GENERATORS = {
    "torch": (seeded, lambda g: float(torch.rand((), generator=g))),
    "numpy": (lambda: np.random.default_rng(3), lambda g: float(g.random())),
    "numpy, MT19937": (
        lambda: np.random.Generator(np.random.MT19937(3)),
        lambda g: float(g.random()),
    ),
    "numpy, RandomState": (lambda: np.random.RandomState(3), lambda g: float(g.randn())),
    "python": (lambda: random.Random(3), lambda g: g.gauss(0, 1)),
}


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("is_made_late", [False, True])
@pytest.mark.parametrize("attribute", ["generator", "_rng"])
def test_restore_parts_generator(name, is_made_late, attribute):
    """In an attribute of any name; also one that is made when it is first needed."""
    make, draw = GENERATORS[name]
    generator = make()
    draw(generator)
    states = through_a_checkpoint(part_states(Part(**{attribute: generator})))
    expected = [draw(generator) for _ in range(3)]
    assert len(set(expected)) == 3

    other = Part(**{attribute: None if is_made_late else make()})
    restore_parts(states, other)
    restored = getattr(other, attribute)
    assert [draw(restored) for _ in range(3)] == expected


class Kind(Enum):
    A = 1
    B = 2


WRAPPERS = {
    "nothing": lambda part: part,
    "Subset": lambda part: Subset(part, [0]),
    "Subset of Subset": lambda part: Subset(Subset(part, [0]), [0]),
    "ConcatDataset": lambda part: ConcatDataset([Part(), part]),
    "StackDataset, tuple": lambda part: StackDataset(Part(), part),
    "StackDataset, dict": lambda part: StackDataset(first=Part(), second=part),
    "dict with keys of any class": lambda part: Part(datasets={Kind.A: Part(), Kind.B: part}),
    "ChainDataset": lambda part: ChainDataset((Part(), part)),
    "RemoveColumnsCollator": lambda part: RemoveColumnsCollator(part, ["x"]),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_part_states_of_what_is_wrapped(wrapper):
    wrap = WRAPPERS[wrapper]
    drawn = Part(generator=seeded())
    torch.rand(2, generator=drawn.generator)
    fresh = Part(generator=seeded())
    restore_parts(through_a_checkpoint(part_states(None, wrap(drawn))), None, wrap(fresh))
    assert torch.equal(fresh.generator.get_state(), drawn.generator.get_state())

    moved = Stateful(3)
    states = through_a_checkpoint(part_states(wrap(moved)))
    moved.position.append(4)
    other = Stateful()
    for _ in range(2):
        restore_parts(states, wrap(other))
        assert other.position == [3]
        other.position.append(5)


class StatefulStream(IterableDataset):
    def __iter__(self):
        return iter(())

    def state_dict(self):
        raise AssertionError("the loader asks for it, with each batch")

    load_state_dict = state_dict


def test_part_states_leaves_out_what_is_saved_elsewhere():
    """Generators of the process, positions of streams, weights; and an object whose state cannot
    be loaded.
    """
    for generator in (torch.default_generator, random._inst, np.random.mtrand._rand, 3, None):
        assert part_states(Part(generator=generator)) == []
    sampler = DistributedSampler(Part(), num_replicas=1, rank=0)
    sampler.state_dict = sampler.load_state_dict = None
    assert (
        part_states(StatefulStream(), torch.nn.Linear(1, 1), sampler, DataLoader([1]), print, None)
        == []
    )
    assert part_states(Part(state_dict=dict)) == []


def test_part_states_does_not_search():
    generator = seeded()
    holders = [
        Part(transforms=[generator]),
        Part(draws={"crop": generator}),
        Part(inner=Part(generator=generator)),
    ]
    assert part_states(*holders, lambda: generator) == []


def test_part_states_of_parts_that_refer_to_each_other():
    collator = Part(generator=seeded())
    collator.dataset = Part(data_collator=collator)
    states = part_states(collator)
    torch.rand(2, generator=collator.generator)
    restore_parts(states, collator)
    assert torch.equal(collator.generator.get_state(), seeded().get_state())


class Untouched:
    @property
    def __dict__(self):
        raise AssertionError("a sample was searched")


def test_part_states_does_not_search_samples():
    """It is called before each batch, and would search all of them."""
    for samples in ([Untouched()], (Untouched(),), {"a": Untouched()}):
        assert part_states(Part(dataset=samples)) == []
    with pytest.raises(AssertionError, match="a sample was searched"):
        part_states(Part(datasets=[Untouched()]))


class Unplain(Stateful):
    def state_dict(self):
        return {"position": object()}


def test_part_states_warns_of_a_state_that_a_checkpoint_cannot_hold(caplog):
    part = Unplain()
    assert part_states(part) == part_states(part) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "The state_dict of Unplain is not saved" in caplog.text


@pytest.mark.parametrize(
    "generator",
    [random.Random(3), np.random.Generator(np.random.MT19937(3))],
    ids=["kind", "algorithm"],
)
def test_restore_parts_warns_of_another_generator(caplog, generator):
    stored = part_states(Part(generator=np.random.default_rng(3)))
    other = type(f"Changed{type(generator).__name__}", (Part,), {})(generator=generator)
    restore_parts(stored, other)
    assert other.generator is generator
    assert (
        f"{type(other).__name__}.generator is in the checkpoint, but cannot be restored"
        in caplog.text
    )


@pytest.mark.parametrize("is_made_late", [False, True])
def test_restore_parts_warns_of_a_generator_of_another_device(caplog, is_made_late):
    """A checkpoint of a GPU, which is continued on the CPU."""
    generator = None if is_made_late else seeded()
    other = type(f"OnCpu{is_made_late}", (Part,), {})(generator=generator)
    state = ["cuda:99", torch.zeros(16, dtype=torch.uint8)]
    stored = {"root": 0, "path": ["generator"], "kind": "torch", "state": state}
    restore_parts([stored], other)
    assert other.generator is generator
    assert f"{type(other).__name__}.generator is in the checkpoint" in caplog.text


def test_restore_parts_of_the_masking_collator():
    """Its generator is None until the first batch."""

    class Tokenizer:
        mask_token = "[MASK]"

    collator = DataCollatorForLanguageModeling(Tokenizer(), seed=5)
    assert part_states(collator) == []
    collator.create_rng()
    torch.rand(2, generator=collator.generator)
    resumed = DataCollatorForLanguageModeling(Tokenizer(), seed=5)
    restore_parts(through_a_checkpoint(part_states(collator)), resumed)
    assert torch.equal(resumed.generator.get_state(), collator.generator.get_state())


class Shuffled(Sampler):
    """A sampler with an attribute `generator` of numpy."""

    def __init__(self, size):
        self.size = size
        self.generator = np.random.default_rng(5)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(self.generator.permutation(self.size).tolist())


class Remembering(Shuffled):
    """A sampler with a `state_dict`."""

    def __init__(self, size):
        self.size = size
        self.rng = np.random.default_rng(5)

    def __iter__(self):
        return iter(self.rng.permutation(self.size).tolist())

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


class ShuffledBatches(Shuffled):
    """A batch sampler with an attribute `generator`."""

    def __iter__(self):
        return ([index, index] for index in super().__iter__())


LOADERS = {
    "sampler with generator": lambda: DataLoader(range(9), 2, sampler=Shuffled(9)),
    "sampler with state_dict": lambda: DataLoader(range(9), 2, sampler=Remembering(9)),
    "batch sampler with generator": lambda: DataLoader(range(9), batch_sampler=ShuffledBatches(9)),
    "generator of loader and sampler": lambda: DataLoader(
        range(9), 2, shuffle=True, generator=seeded()
    ),
}


def epochs_of(loader, count):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("done", [0, 1, 3])
def test_epoch_loader_resumes_the_order_of_its_samplers(name, done):
    """After the first epoch, or in the middle of the second one; a fresh sampler gives another
    order.
    """

    def make():
        loader = rebuild_loader(LOADERS[name](), seedable=False)
        loader.tracked = True
        return loader

    whole = epochs_of(make(), 3)
    assert whole[0] != whole[1] != whole[2]

    interrupted = make()
    epochs_of(interrupted, 1)
    if done > 0:
        batches = iter(interrupted)
        for _ in range(done):
            next(batches)

    resumed = make()
    resumed.load_state_dict(through_a_checkpoint(interrupted.state_dict()))
    assert epochs_of(resumed, 2) == [whole[1][done:], whole[2]]


@pytest.mark.parametrize("name", LOADERS)
def test_reread_loader_begins_again_with_the_same_order(name):
    """In the middle of the second epoch, and after it."""
    loader = ReplayLoader(LOADERS[name]())
    epochs_of(loader, 1)
    expected = epochs_of(loader, 1)
    state = through_a_checkpoint(loader.state_dict())
    expected += epochs_of(loader, 1)

    resumed = ReplayLoader(LOADERS[name]())
    resumed.load_state_dict(state, inside_epoch=True)
    resumed.skip(1)
    assert epochs_of(resumed, 2) == [expected[0][1:], expected[1]]
    resumed = ReplayLoader(LOADERS[name]())
    resumed.load_state_dict(state)
    assert epochs_of(resumed, 1) == expected[1:]


class Table(list):
    """Batches whose `skip` returns another object, as that of a `datasets.Dataset`."""

    def skip(self, count):
        return Table(self[count:])


def test_reread_loader_skips_batches_of_a_loader_with_a_method_skip():
    loader = ReplayLoader(Table([1, 2, 3]))
    loader.skip(2)
    assert list(loader) == [3]
    assert list(loader) == [1, 2, 3]
