"""The state of ZeRO's optimizer on one rank, and the positions of parameters in it.

In stages 1 and 2 the parameters of a group are concatenated in one flat tensor, of which each rank
has a slice. In stage 3 each rank has an equal part of each parameter, and these parts are
concatenated. Source: `deepspeed.utils.zero_to_fp32`, and `state_dict` of DeepSpeed's optimizers.
Their `param_slice_mappings` are not used: with `round_robin_gradients` they name the wrong elements
(DeepSpeed 0.19.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from ..common.torch_files import describe_value

MASTER_WEIGHTS: Final = None
"""In place of an entry of a state: the optimizer's copy of the parameters, in its precision."""


class Piece(NamedTuple):
    """Contiguous elements of a parameter that one rank has."""

    group: int
    """Number of the flat tensor."""
    start: int
    """Index of the first element in the flat tensor."""
    offset: int
    """Index of the first element in the parameter."""
    length: int


class ZeroPartition:
    """State of ZeRO's optimizer on one rank, read from its file or from a live engine.

    Args:
        content: the state dict of that optimizer.
        shapes: the parameters of each flat tensor with their shapes, in their order.
        rank: the rank whose state it is.
        ranks: number of ranks that share the parameters.

    Attributes:
        flats_key: key of the flat tensors in the content.
        states_key: key of the optimizer's own state in the content.
        flats: the flat tensors: parameters in the precision of the optimizer.
        sizes: number of elements of each flat tensor with its padding, which files leave out.
        scaler: the loss scaler; None without one.
        states: state in the optimizer of each flat tensor.
        param_groups: the optimizer's groups, with their options.
        param_group_of: number of the optimizer's group of each flat tensor.
        pieces: the elements of each parameter that this rank has, by name; a parameter without any
            is missing.

    Raises:
        ValueError: content and shapes do not belong together; names what the content holds.
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

        # The optimizer treats each flat tensor as one parameter, with a number.
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

        # With `parameter_alignment` there are gaps after parameters.
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
        """Return whether an entry of a state has as many elements as the flat tensor."""
        # A counter, which could be taken for a flat tensor with one element.
        if entry == "step":
            return False
        value = self.states[group][entry]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return False
        return value.numel() == self.sizes[group]

    @property
    def entries(self) -> list[set[str]]:
        """Names of the elementwise entries of each state."""
        names: list[set[str]] = []
        for group, state in enumerate(self.states):
            names.append({entry for entry in state if self.is_elementwise(group, entry)})
        return names

    def scalars(self, group: int) -> dict[str, Any]:
        """Return the other entries of a state, such as the step, which are the same in all ranks.

        Raises:
            ValueError: one has several elements, as in optimizers in 8 bits: it belongs to this
                rank alone.
        """
        scalars: dict[str, Any] = {}
        for entry, value in self.states[group].items():
            if self.is_elementwise(group, entry):
                continue
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ValueError(
                    f"{describe_value(value)} as {entry}, which is of that process alone; start as "
                    "many processes as wrote it"
                )
            scalars[entry] = value
        return scalars

    @property
    def options(self) -> list[dict[str, Any]]:
        """The options of each group of the optimizer, such as rates."""
        options_of_groups: list[dict[str, Any]] = []
        for group in self.param_groups:
            options = dict(group)
            options.pop("params", None)
            options_of_groups.append(options)
        return options_of_groups

    def values(self, piece: Piece, entry: str | None) -> torch.Tensor:
        """Return a view of a piece, in an entry of its state or in `MASTER_WEIGHTS`."""
        if entry is None:
            flat = self.flats[piece.group]
        else:
            flat = self.states[piece.group][entry]
        return flat.detach()[piece.start : piece.start + piece.length]


def _slice(
    group: int, numels: Mapping[str, int], gaps: Sequence[int], rank: int, size: int
) -> Iterator[tuple[str, Piece]]:
    """Yield the pieces in the slice of a rank of concatenated parameters, as in stages 1 and 2."""
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
    """Yield the piece of each parameter that a rank has, as in stage 3; the last are padded."""
    start = 0
    for name, numel in numels.items():
        part = -(-numel // ranks)
        offset = rank * part
        length = min(part, numel - offset)
        if length > 0:
            yield name, Piece(group, start, offset, length)
        start += part
