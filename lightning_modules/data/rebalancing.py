"""Batches of similar cost in all processes and micro-batches of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import BatchSampler

from .order import random_order


class BatchRebalanceSampler(BatchSampler):
    """Sample batches that cost the same in all processes and micro-batches of a step.

    Works like `transformers.trainer_pt_utils.BatchRebalanceSampler` (5.17 and later), with the same
    batches.

    The samples of an optimizer step are the next `effective_batch_size` of a random order, which
    depends on `seed` and the epoch alone. Sorted by length they are cut into as many groups as
    there are micro-batches in all processes, and samples move from the most expensive group to the
    cheapest one until that does not help any more. The most expensive groups become the first
    micro-batches of the processes, and so on. A group of n samples, the longest of which has length
    l, costs `n l + QUADRATIC_COST_COEF n l^2`: padded tokens, and attention.
    """

    QUADRATIC_COST_COEF = 0.001

    def __init__(
        self,
        lengths: Sequence[int],
        effective_batch_size: int,
        dp_size: int,
        grad_accum: int,
        shuffle: bool = True,
        seed: int = 42,
        rank: int = 0,
        drop_last: bool = True,
    ) -> None:
        """Set the size of a step; the batches are computed lazily, one step at a time.

        Args:
            lengths: the lengths of all samples, in tokens.
            effective_batch_size: samples of an optimizer step, in all processes together.
            dp_size: number of processes that read different data.
            grad_accum: micro-batches of each process in a step.
            shuffle: whether the order is a random one.
            seed: the seed of the order of epoch 0; epoch `e` is drawn with `seed + e`.
            rank: index of this process among `dp_size`.
            drop_last: leave out a last step of fewer samples. Otherwise it is filled up from the
                start of the epoch where there would not be one sample for each micro-batch.

        Raises:
            ValueError: `rank` is out of range, or a step has fewer samples than micro-batches.
        """
        if not 0 <= rank < dp_size:
            raise ValueError(
                f"rank={rank} is out of range for {dp_size} processes (dp_size): use 0 to "
                f"{dp_size - 1}."
            )
        if effective_batch_size < dp_size * grad_accum:
            raise ValueError(
                f"{effective_batch_size=} is less than {grad_accum=} times {dp_size=}: use at "
                f"least {dp_size * grad_accum}."
            )
        self.lengths = np.asarray(lengths)
        self.effective_batch_size = effective_batch_size
        self.dp_size = dp_size
        self.grad_accum = grad_accum
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch at the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the micro-batches of this process in an epoch."""
        return self._steps * self.grad_accum

    @property
    def _steps(self) -> int:
        """Optimizer steps in an epoch."""
        full_steps, extra_samples = divmod(len(self.lengths), self.effective_batch_size)
        if extra_samples > 0 and not self.drop_last:
            return full_steps + 1
        return full_steps

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches_from(0)

    def batches_from(self, skipped: int) -> Iterator[list[int]]:
        """Yield the micro-batches of this process after the first `skipped` ones.

        Skipped steps are not balanced.
        """
        first_step, skipped_in_step = divmod(skipped, self.grad_accum)
        size = self.effective_batch_size
        order = self._order()
        for step in range(first_step, self._steps):
            samples = order[step * size : (step + 1) * size]

            # Fill up a short last step, so that each micro-batch has a sample.
            missing = self.dp_size * self.grad_accum - len(samples)
            if missing > 0:
                samples = np.concatenate([samples, order[np.arange(missing) % len(order)]])

            micro_batches = self._micro_batches_of_rank(samples)
            yield from itertools.islice(micro_batches, skipped_in_step, None)
            skipped_in_step = 0

    def _order(self) -> np.ndarray:
        """Return the samples in the order of the epoch."""
        count = len(self.lengths)
        if not self.shuffle:
            return np.arange(count, dtype=np.int32)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return random_order(count, generator)

    def _micro_batches_of_rank(self, samples: np.ndarray) -> Iterator[list[int]]:
        """Yield the micro-batches of this process in a step of these samples."""
        longest_first = np.argsort(-self.lengths[samples], kind="stable")
        samples = samples[longest_first]
        lengths: list[int] = self.lengths[samples].tolist()
        groups = _Groups(lengths, self.dp_size, self.grad_accum, self._cost)
        groups.balance()

        # Processes work on groups of similar cost at the same time, the most expensive ones first.
        by_cost = groups.by_cost(groups.costs())
        starts = groups.starts()
        for group in by_cost[self.rank :: self.dp_size]:
            start = starts[group]
            yield samples[start : start + groups.counts[group]].tolist()

    def _cost(self, samples: int, longest: int) -> float:
        """Return the cost of a micro-batch: padded tokens, and attention."""
        return samples * longest + self.QUADRATIC_COST_COEF * samples * longest * longest


class _Groups:
    """Groups of consecutive samples, which are sorted by length.

    Moving a sample from one group to another shifts all groups between the two.

    Args:
        lengths: the lengths of the samples, longest first.
        dp_size: groups in a slot, which all processes work on at the same time.
        slots: number of slots.
        cost: the cost of a group, from its number of samples and their greatest length.

    Attributes:
        counts: number of samples in each group.
    """

    def __init__(
        self, lengths: list[int], dp_size: int, slots: int, cost: Callable[[int, int], float]
    ) -> None:
        self.lengths = lengths
        self.dp_size = dp_size
        self.cost = cost
        groups = dp_size * slots
        # To begin with, all groups are of equal size; the first ones get what remains.
        size, rest = divmod(len(lengths), groups)
        self.counts = [size + 1] * rest + [size] * (groups - rest)
        self._settled: set[int] = set()
        """Groups that no longer give up samples."""

    def starts(self) -> list[int]:
        """Return the index of the first sample of each group."""
        return [0, *itertools.accumulate(self.counts[:-1])]

    def costs(self) -> list[float]:
        """Return the cost of each group."""
        costs: list[float] = []
        for count, start in zip(self.counts, self.starts(), strict=True):
            costs.append(self.cost(count, self.lengths[start]))
        return costs

    def by_cost(self, costs: list[float]) -> list[int]:
        """Return the groups, the most expensive one first; a slot is `dp_size` of these in turn."""
        return sorted(range(len(costs)), key=lambda group: -costs[group])

    def balance(self) -> None:
        """Move samples until an arrangement repeats, and keep the most even one.

        In each step one sample moves from the most expensive group to the cheapest. A group of a
        single sample cannot become cheaper: the others of its slot are made as expensive as
        possible without exceeding it, and the search continues among the rest.
        """
        tried: set[tuple[int, ...]] = set()
        best_counts = self.counts
        smallest_gap = float("inf")
        for _ in range(max(len(self.lengths), 30 * len(self.counts))):
            # From here on the same arrangements would follow again.
            if tuple(self.counts) in tried:
                break
            tried.add(tuple(self.counts))
            costs = self.costs()
            open_groups = [group for group in range(len(costs)) if group not in self._settled]
            if not open_groups:
                break

            # Keep the arrangement with the smallest gap so far.
            dearest = max(open_groups, key=costs.__getitem__)
            cheapest = min(open_groups, key=costs.__getitem__)
            gap = costs[dearest] - costs[cheapest]
            if gap < smallest_gap:
                best_counts = list(self.counts)
                smallest_gap = gap
            if dearest == cheapest or smallest_gap == 0:
                break

            if self.counts[dearest] == 1:
                self._settle_slot_of(dearest, costs)
            else:
                self._move(dearest, cheapest)
        self.counts = best_counts

    def _settle_slot_of(self, dearest: int, costs: list[float]) -> None:
        """Fill up the groups that are in a slot with `dearest`, and settle them all."""
        order = self.by_cost(costs)
        slot_start = order.index(dearest) // self.dp_size * self.dp_size
        slot = set(order[slot_start : slot_start + self.dp_size])
        for group in slot:  # the order of the set is that of the reference
            if group != dearest and group not in self._settled:
                self._fill_up(group, slot, costs[dearest])
        self._settled |= slot

    def _fill_up(self, group: int, slot: set[int], max_cost: float) -> None:
        """Move samples of the cheapest other groups to a group, up to a cost."""
        while self._cost_with_another_sample(group) <= max_cost:
            costs = self.costs()
            excluded = slot | self._settled

            # A group keeps at least one sample.
            donors: list[int] = []
            for other, count in enumerate(self.counts):
                if other not in excluded and count > 1:
                    donors.append(other)
            if not donors:
                return
            self._move(min(donors, key=costs.__getitem__), group)

    def _cost_with_another_sample(self, group: int) -> float:
        longest = self.lengths[self.starts()[group]]
        return self.cost(self.counts[group] + 1, longest)

    def _move(self, donor: int, receiver: int) -> None:
        """Move a sample from one group to another."""
        self.counts[donor] -= 1
        self.counts[receiver] += 1
