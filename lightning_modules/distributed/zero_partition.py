"""Locate parameters in the state of DeepSpeed's ZeRO optimizer on one rank.

In stages 1 and 2, the parameters of a group are concatenated to a flat tensor, of which each rank
owns a slice. In stage 3, each rank owns an equal part of each parameter, and concatenates these
parts. Source: `deepspeed.utils.zero_to_fp32`, and `state_dict` of DeepSpeed's optimizers. Their
`param_slice_mappings` are not used, because with `round_robin_gradients` they refer to the wrong
elements (DeepSpeed 0.19.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from ..common.torch_files import describe_value

MASTER_WEIGHTS: Final = None
"""Used instead of a state's entry: the optimizer's copy of the parameters."""


class Piece(NamedTuple):
    """Contiguous elements of a parameter that one rank owns."""

    group: int
    """Index of the flat tensor."""
    start: int
    """Index of the first element in the flat tensor."""
    offset: int
    """Index of the first element in the parameter."""
    length: int


class ZeroPartition:
    """State of the ZeRO optimizer on one rank, from its file or from a live engine.

    Args:
        content: the state dict of the optimizer.
        shapes: names and shapes of the parameters in each flat tensor, in order.
        rank: the rank whose state it is.
        ranks: number of ranks over which the parameters are sharded.

    Attributes:
        flats_key: key of the flat tensors in the content.
        states_key: key of the optimizer's own state in the content.
        flats: the flat tensors, with the parameters in the precision of the optimizer.
        sizes: number of elements of each flat tensor including padding, which files omit.
        scaler: the loss scaler; None without one.
        states: optimizer state of each flat tensor.
        param_groups: the parameter groups of the optimizer.
        param_group_of: index of the parameter group of each flat tensor.
        pieces: the elements that this rank owns of each parameter, by name. Parameters without
            elements on this rank are omitted.

    Raises:
        ValueError: content and shapes do not match. The message describes the content.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        shapes: Sequence[Mapping[str, Sequence[int]]],
        rank: int,
        ranks: int,
    ) -> None:
        in_stage_3 = content.get("zero_stage") == 3
        if in_stage_3:
            self.flats_key = "fp32_flat_groups"
            self.states_key = "optimizer_state_dict"
        else:
            self.flats_key = "single_partition_of_fp32_groups"
            self.states_key = "base_optimizer_state"
        self.flats: list[torch.Tensor] = list(content[self.flats_key])
        self.scaler = content.get("loss_scaler")
        base = content[self.states_key]
        if isinstance(base, list):
            raise ValueError(
                "states of zero_optimization.elastic_checkpoint, which are not supported"
            )

        # The optimizer treats each flat tensor as one numbered parameter.
        self.param_groups: list[Mapping[str, Any]] = base["param_groups"]
        self.states: list[Mapping[str, Any]] = []
        self.param_group_of: list[int] = []
        for group_index, options in enumerate(self.param_groups):
            for number in options["params"]:
                self.states.append(base["state"].get(number, {}))
                self.param_group_of.append(group_index)
        if not len(self.states) == len(self.flats) == len(shapes):
            raise ValueError(
                f"{len(self.flats)} flat tensors, {len(self.states)} states, {len(shapes)} "
                "descriptions"
            )

        paddings = [0] * len(self.flats)
        if not in_stage_3:
            paddings = content["group_paddings"]
        self.sizes: list[int] = []
        for flat, padding in zip(self.flats, paddings, strict=True):
            self.sizes.append(flat.numel() + padding)

        # With `parameter_alignment`, there are gaps between parameters.
        all_gaps = content.get("param_alignment_paddings")
        self.pieces: dict[str, Piece] = {}
        for number, group in enumerate(shapes):
            numels = {name: torch.Size(shape).numel() for name, shape in group.items()}
            if in_stage_3:
                pieces = _equal_parts(number, numels, rank, ranks)
            else:
                gaps = all_gaps[number] if all_gaps else [0] * len(group)
                pieces = _slice(number, numels, gaps, rank, self.sizes[number])
            self.pieces.update(pieces)

    def is_elementwise(self, group: int, entry: str) -> bool:
        """Return whether an entry of a state has one value for each element of the flat tensor."""
        # The step is a counter, even if the flat tensor has one element.
        if entry == "step":
            return False
        value = self.states[group][entry]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return False
        return value.numel() == self.sizes[group]

    @property
    def entries(self) -> list[set[str]]:
        """Return the names of the elementwise entries of each state."""
        names: list[set[str]] = []
        for group, state in enumerate(self.states):
            names.append({entry for entry in state if self.is_elementwise(group, entry)})
        return names

    def scalars(self, group: int) -> dict[str, Any]:
        """Return the other entries of a state, such as the step, which are equal on all ranks.

        Raises:
            ValueError: an entry has several elements that only apply to this rank, as in 8-bit
                optimizers.
        """
        scalars: dict[str, Any] = {}
        for entry, value in self.states[group].items():
            if self.is_elementwise(group, entry):
                continue
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ValueError(
                    f"{describe_value(value)} as {entry}, which cannot be resharded; resume with "
                    "the same number of processes"
                )
            scalars[entry] = value
        return scalars

    @property
    def options(self) -> list[dict[str, Any]]:
        """Return the options of each parameter group, such as the learning rate."""
        options_of_groups: list[dict[str, Any]] = []
        for group in self.param_groups:
            options = dict(group)
            options.pop("params", None)
            options_of_groups.append(options)
        return options_of_groups

    def values(self, piece: Piece, entry: str | None) -> torch.Tensor:
        """Return a view of a piece in an entry of its state, or in `MASTER_WEIGHTS`."""
        if entry is None:
            flat = self.flats[piece.group]
        else:
            flat = self.states[piece.group][entry]
        return flat.detach()[piece.start : piece.start + piece.length]


def _slice(
    group: int, numels: Mapping[str, int], gaps: Sequence[int], rank: int, size: int
) -> Iterator[tuple[str, Piece]]:
    """Yield the pieces in a rank's slice of the concatenated parameters (stages 1 and 2)."""
    first = rank * size
    last = first + size
    begin = 0
    for (name, numel), gap in zip(numels.items(), gaps, strict=True):
        start = max(begin, first)
        stop = min(begin + numel, last)
        if start < stop:
            yield name, Piece(group, start - first, start - begin, stop - start)
        begin += numel + gap


def _equal_parts(
    group: int, numels: Mapping[str, int], rank: int, ranks: int
) -> Iterator[tuple[str, Piece]]:
    """Yield a rank's piece of each parameter (stage 3). The last pieces are padded."""
    start = 0
    for name, numel in numels.items():
        part = -(-numel // ranks)
        offset = rank * part
        length = min(part, numel - offset)
        if length > 0:
            yield name, Piece(group, start, offset, length)
        start += part
