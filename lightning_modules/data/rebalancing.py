"""Batches of varying numbers of samples and similar cost, across the processes and micro-batches
of a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import BatchSampler


class BatchRebalanceSampler(BatchSampler):
    """As `transformers.trainer_pt_utils.BatchRebalanceSampler` (5.17 and later): the same batches.

    The samples of an optimizer step are the next `effective_batch_size` of a random order, which
    depends on `seed` and the epoch alone. Sorted by length they are cut into as many groups as
    there are micro-batches in all processes, and samples move from the most expensive group to the
    cheapest one until that does not help any more. The groups that cost most are the first
    micro-batch of each process, and so on. A group of n samples, the longest of which has length l,
    costs `n l + QUADRATIC_COST_COEF n l^2`: padded tokens, and attention.
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
            lengths: of all samples, in tokens.
            effective_batch_size: samples of an optimizer step, in all processes together.
            dp_size: number of processes that read different data.
            grad_accum: micro-batches of each process in a step.
            shuffle: whether the order is a random one.
            seed: of the order of epoch 0; epoch `e` is drawn with `seed + e`.
            rank: index of this process among `dp_size`.
            drop_last: leave out a last step of fewer samples. Otherwise it is filled up from the
                start of the epoch where there would not be one sample for each micro-batch.

        Raises:
            ValueError: one of these numbers cannot be, or a step has fewer samples than
                micro-batches; it is named.
        """
        if not 0 <= rank < dp_size:
            raise ValueError(
                f"rank={rank} has to be one of {dp_size} processes (dp_size), which count from 0."
            )
        if effective_batch_size < dp_size * grad_accum:
            raise ValueError(
                f"{effective_batch_size=} is less than {grad_accum=} times {dp_size=}: make it "
                "larger."
            )
        self.lengths = np.asarray(lengths)
        self.effective_batch_size, self.dp_size, self.grad_accum = (
            effective_batch_size,
            dp_size,
            grad_accum,
        )
        self.shuffle, self.seed, self.rank, self.drop_last = shuffle, seed, rank, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch at the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the micro-batches of this process in an epoch."""
        return self._steps * self.grad_accum

    @property
    def _steps(self) -> int:
        whole, rest = divmod(len(self.lengths), self.effective_batch_size)
        return whole + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches_from(0)

    def batches_from(self, skipped: int) -> Iterator[list[int]]:
        """Yield the micro-batches of this process after the first ones, whose steps are not
        worked out.
        """
        first_step, rest = divmod(skipped, self.grad_accum)
        order = self._order()
        for step in range(first_step, self._steps):
            samples = order[
                step * self.effective_batch_size : (step + 1) * self.effective_batch_size
            ]

            # A last step has a sample for each micro-batch.
            lacking = self.dp_size * self.grad_accum - len(samples)
            if lacking > 0:
                samples = np.concatenate([samples, order[np.arange(lacking) % len(order)]])

            yield from itertools.islice(self._share(samples), rest, None)
            rest = 0

    def _order(self) -> np.ndarray:
        if not self.shuffle:
            return np.arange(len(self.lengths), dtype=np.int32)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(
            len(self.lengths), generator=generator, dtype=torch.int32, device="cpu"
        ).numpy()

    def _share(self, samples: np.ndarray) -> Iterator[list[int]]:
        """Yield the micro-batches of this process in a step."""
        samples = samples[np.argsort(-self.lengths[samples], kind="stable")]
        groups = _Groups(self.lengths[samples].tolist(), self.dp_size, self.grad_accum, self._cost)
        groups.balance()
        by_cost = groups.by_cost(groups.costs())
        for group in by_cost[self.rank :: self.dp_size]:
            start = groups.starts()[group]
            yield samples[start : start + groups.counts[group]].tolist()

    def _cost(self, samples: int, longest: int) -> float:
        return samples * longest + self.QUADRATIC_COST_COEF * samples * longest * longest


class _Groups:
    """Contiguous groups of samples sorted by length: moving a sample shifts all groups between the
    two.

    Args:
        lengths: of the samples, longest first.
        dp_size: groups in a slot, which all processes work on at the same time.
        slots: how many there are.
        cost: of a group, from its number of samples and their greatest length.
    """

    def __init__(
        self, lengths: list[int], dp_size: int, slots: int, cost: Callable[[int, int], float]
    ) -> None:
        self.lengths, self.dp_size, self.cost = lengths, dp_size, cost
        each, rest = divmod(len(lengths), dp_size * slots)
        self.counts = [each + (group < rest) for group in range(dp_size * slots)]
        self._settled: set[int] = set()
        """Groups that no longer give up samples."""

    def starts(self) -> list[int]:
        """Return the index of the first sample of each group."""
        return [0, *itertools.accumulate(self.counts[:-1])]

    def costs(self) -> list[float]:
        """Return the cost of each group."""
        return [
            self.cost(count, self.lengths[start])
            for count, start in zip(self.counts, self.starts(), strict=True)
        ]

    def by_cost(self, costs: list[float]) -> list[int]:
        """Return the groups, the most expensive one first; a slot is `dp_size` of these in turn."""
        return sorted(range(len(costs)), key=lambda group: -costs[group])

    def balance(self) -> None:
        """Move samples until an arrangement repeats, and keep the most even one.

        In each step one sample goes from the most expensive group to the cheapest. A group of a
        single sample cannot become cheaper: the others of its slot are made as expensive as they
        can be without being more so than it, and the search goes on among the rest.
        """
        tried: set[tuple[int, ...]] = set()
        best, narrowest = self.counts, float("inf")
        for _ in range(max(len(self.lengths), 30 * len(self.counts))):
            if tuple(self.counts) in tried:
                break
            tried.add(tuple(self.counts))
            costs = self.costs()
            open_ = [group for group in range(len(costs)) if group not in self._settled]
            if not open_:
                break
            dearest, cheapest = max(open_, key=costs.__getitem__), min(open_, key=costs.__getitem__)
            if costs[dearest] - costs[cheapest] < narrowest:
                best, narrowest = list(self.counts), costs[dearest] - costs[cheapest]
            if dearest == cheapest or narrowest == 0:
                break
            if self.counts[dearest] == 1:
                self._settle_slot_of(dearest, costs)
            else:
                self._move(dearest, cheapest)
        self.counts = best

    def _settle_slot_of(self, dearest: int, costs: list[float]) -> None:
        order = self.by_cost(costs)
        slot = order.index(dearest) // self.dp_size * self.dp_size
        members = set(order[slot : slot + self.dp_size])
        for member in members:  # the order of the set is that of the reference
            if member != dearest and member not in self._settled:
                self._top_up(member, members, costs[dearest])
        self._settled |= members

    def _top_up(self, member: int, members: set[int], limit: float) -> None:
        while self.cost(self.counts[member] + 1, self.lengths[self.starts()[member]]) <= limit:
            costs = self.costs()
            others = (group for group in range(len(costs)) if group not in members | self._settled)
            donors = [group for group in others if self.counts[group] > 1]
            if not donors:
                return
            self._move(min(donors, key=costs.__getitem__), member)

    def _move(self, donor: int, receiver: int) -> None:
        self.counts[donor] -= 1
        self.counts[receiver] += 1
