"""Assemble weights and optimizer states, by parameter, from the files of the processes of a ZeRO training.

DeepSpeed need not be installed: objects in its files are read as plain values. The files are memory-mapped, so that
only the requested elements of a tensor are read.

In stages 1 and 2 the parameters of a group are concatenated in one flat tensor, of which each process has a slice. In
stage 3 each process has an equal part of each parameter, and these are concatenated. Source:
`deepspeed.utils.zero_to_fp32`, and `state_dict` of DeepSpeed's optimizers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..common.local_paths import StrPath
from ..common.torch_files import kind_of
from .zero_files import OF_ALL, OF_PROCESS, StandIn, load_file, saved_states

_COUNTERS = {"step"}
"""Entries of an optimizer's state that are counters, even if they have the shape of a shard."""


class Piece(NamedTuple):
    """Contiguous elements of a parameter in one process."""

    process: int
    group: int
    """Number of the flat tensor of that process."""
    start: int
    """Index of the first element in the flat tensor."""
    offset: int
    """Index of the first element in the parameter."""
    length: int


class ZeroPart:
    """Shard of ZeRO's optimizer of one process, from its file or from `state_dict` of an engine's optimizer.

    Args:
        content: the state.
        shapes: the parameters of each flat tensor, in their order in it.

    Raises:
        ValueError: these do not belong together; says what is there.
    """

    def __init__(self, content: Mapping[str, Any], shapes: Sequence[Mapping[str, Sequence[int]]]) -> None:
        self.in_stage_3 = content.get("zero_stage") == 3
        self.states_key = "optimizer_state_dict" if self.in_stage_3 else "base_optimizer_state"
        self.flats_key = "fp32_flat_groups" if self.in_stage_3 else "single_partition_of_fp32_groups"
        self.shapes = [{name: torch.Size(shape) for name, shape in group.items()} for group in shapes]
        self.flats: list[torch.Tensor] = list(content[self.flats_key])
        if isinstance(content[self.states_key], list):
            raise ValueError("states of zero_optimization.elastic_checkpoint, which are not read here")
        self.param_groups: list[Mapping[str, Any]] = content[self.states_key]["param_groups"]
        numbers = [(number, place) for place, group in enumerate(self.param_groups) for number in group["params"]]
        if not len(numbers) == len(self.flats) == len(self.shapes) or any(flat.dim() != 1 for flat in self.flats):
            raise ValueError(f"{len(self.flats)} flat tensors, {len(numbers)} states, {len(self.shapes)} descriptions")
        states = content[self.states_key]["state"]
        self.states: list[Mapping[str, Any]] = [states.get(number, {}) for number, _ in numbers]
        self.param_group_of = [place for _, place in numbers]
        paddings = [0] * len(numbers) if self.in_stage_3 else content["group_paddings"]
        self.sizes = [flat.numel() + padding for flat, padding in zip(self.flats, paddings, strict=True)]
        self.gaps = content.get("param_alignment_paddings") or [[0] * len(group) for group in self.shapes]
        self.scaler = content.get("loss_scaler")

    def is_elementwise(self, group: int, entry: str) -> bool:
        """Return whether an entry of the state has one element for each element of the flat tensor."""
        value, flat = self.states[group][entry], self.flats[group]
        if entry in _COUNTERS or not isinstance(value, torch.Tensor) or value.dim() != 1:
            return False
        return value.is_floating_point() and value.numel() in (flat.numel(), self.sizes[group])

    def pieces(self, processes: int) -> dict[str, list[Piece]]:
        """Return the pieces of each parameter over all processes.

        Raises:
            ValueError: there are not as many elements as the parameters have; says how many.
        """
        lay_out = self._equal_parts if self.in_stage_3 else self._stretches
        return {
            name: [piece for piece in pieces if piece.length > 0]
            for group in range(len(self.shapes))
            for name, pieces in lay_out(group, processes)
        }

    def _stretches(self, group: int, processes: int) -> Iterator[tuple[str, list[Piece]]]:
        size, begin = self.sizes[group], 0
        for (name, shape), gap in zip(self.shapes[group].items(), self.gaps[group], strict=True):
            end = begin + shape.numel()
            firsts = [(process, max(begin, process * size)) for process in range(processes)]
            pieces = [
                Piece(process, group, first - process * size, first - begin, min(end, (process + 1) * size) - first)
                for process, first in firsts
            ]
            yield name, pieces
            begin = end + gap
        if begin > size * processes:
            raise ValueError(f"parameters of {begin} elements in {size * processes}")

    def _equal_parts(self, group: int, processes: int) -> Iterator[tuple[str, list[Piece]]]:
        begin = 0
        for name, shape in self.shapes[group].items():
            each = -(-shape.numel() // processes)
            pieces = [
                Piece(process, group, begin, process * each, min(each, shape.numel() - process * each))
                for process in range(processes)
            ]
            yield name, pieces
            begin += each
        if begin != self.sizes[group]:
            raise ValueError(f"parts of {begin} elements in {self.sizes[group]}")


class ZeroStates:
    """States in a checkpoint, of all processes that wrote it.

    Args:
        folder: the checkpoint.

    Attributes:
        folder: DeepSpeed's folder in it.
        processes: how many wrote it.
        shapes: of each parameter that was trained.
        weights: all weights by their names in the model; each is put together when it is asked for. What was trained
            has the precision that the optimizer kept, the rest that of the model.
        tied: the names of weights that are another one, and of which.

    Raises:
        ValueError: there are no states of ZeRO, those of a process lack, or they are damaged or do not belong together.
    """

    def __init__(self, folder: StrPath) -> None:
        saved = saved_states(folder)
        if saved is None or saved.processes is None:
            raise ValueError(f"{folder} has no states of DeepSpeed's ZeRO, stages 1 to 3.")
        self.folder = Path(folder, saved.tag)
        self.processes = saved.processes
        if (self.folder / "offloaded_tensors").exists():
            raise ValueError(f"{self.folder} has states on nvme: resume with as many processes, in the same stage.")
        try:
            self._models = [load_file(path) for path in self._files("model")]
            self._parts = [self._part(path) for path in self._files("optim")]
            self._shuffled = _is_on(self._models[0].get("ds_config"), "zero_optimization", "round_robin_gradients")
            self._first = self._parts[0]
            self.shapes = {name: shape for group in self._first.shapes for name, shape in group.items()}
            self._pieces = self._first.pieces(self.processes)
            self._require_elements()
            for process, part in enumerate(self._parts):
                self._require_alike(process, part)
            weights = _Weights(self, self._models, self._first.in_stage_3)
            self.weights: Mapping[str, torch.Tensor] = weights
            self.tied: Mapping[str, str] = weights.tied
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise ValueError(f"{self.folder} is damaged, or not what DeepSpeed writes ({error!r}).") from error

    def _files(self, kind: str) -> list[Path]:
        """Return the files of all processes by rank; of models there may be one for all."""
        if kind == "model" and (self.folder / OF_ALL).is_file():
            return [self.folder / OF_ALL]
        found: dict[int, Path] = {}
        for path in sorted(self.folder.iterdir()):
            match = OF_PROCESS.fullmatch(path.name)
            if match is not None and match[2] == kind and found.setdefault(int(match[1]), path) != path:
                raise ValueError(f"{self.folder} has two files of the {kind}_states of process {match[1]}.")
        lacking = set(range(self.processes)) - found.keys()
        if lacking:
            raise ValueError(f"{self.folder} lacks the {kind}_states of process {min(lacking)}.")
        return [found[process] for process in sorted(found)]

    def _part(self, path: Path) -> ZeroPart:
        content = load_file(path)["optimizer_state_dict"]
        count = content["partition_count"]
        written = {count} if isinstance(count, int) else set(count)
        if written != {self.processes}:
            others = " or ".join(map(str, sorted(written)))
            raise ValueError(f"{self.folder} has the states of {self.processes} of {others} processes. Copy all to it.")
        try:
            return ZeroPart(content, self._models[0]["param_shapes"])
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: it holds {error}.") from error

    def _require_alike(self, process: int, part: ZeroPart) -> None:
        if not _equal(_options(part.param_groups), self.param_groups) or part.gaps != self._first.gaps:
            raise ValueError(f"{self.folder}: the states of process {process} do not belong to those of process 0.")
        for group, (state, first) in enumerate(zip(part.states, self._first.states, strict=True)):
            where = f"{self.folder}: in process {process} the state of group {group}"
            if state.keys() != first.keys():
                raise ValueError(f"{where} has {sorted(state)}, and in process 0 {sorted(first)}.")
            for entry, value in state.items():
                if part.is_elementwise(group, entry) and self._first.is_elementwise(group, entry):
                    continue
                if (isinstance(value, torch.Tensor) and value.numel() != 1) or not _equal(value, first[entry]):
                    alone = f"{kind_of(value)} as {entry}, which is of that process alone"
                    raise ValueError(f"{where} has {alone}. Start as many processes as wrote it.")

    def _require_elements(self) -> None:
        for name, pieces in self._pieces.items():
            if sum(piece.length for piece in pieces) != self.shapes[name].numel():
                raise ValueError(f"{self.folder} is damaged: there are not all elements of {name}.")
            for process, group, start, _, length in pieces:
                if self._parts[process].flats[group].numel() < start + length:
                    raise ValueError(f"{self.folder} is damaged: process {process} does not have its part of {name}.")

    @property
    def counters(self) -> dict[str, int]:
        """Return the engine's counters of steps and samples, by the names of its attributes."""
        names = ("global_steps", "global_samples", "skipped_steps")
        return {name: self._models[0][name] for name in names if isinstance(self._models[0].get(name), int)}

    @property
    def scaler(self) -> tuple[str, dict[str, Any]] | None:
        """Return the class name and the attributes of the loss scaler; None without one."""
        scaler = self._first.scaler
        return (type(scaler).__name__, dict(vars(scaler))) if isinstance(scaler, StandIn) else None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the options of each group of the optimizer, such as rates."""
        return _options(self._first.param_groups)

    def param_group_of(self, name: str) -> int:
        """Return the number of a trained parameter's group."""
        return self._first.param_group_of[self._group_of[name]]

    def entries(self, name: str) -> set[str]:
        """Return the elementwise entries of the state of a parameter."""
        group = self._group_of[name]
        return {entry for entry in self._first.states[group] if self._first.is_elementwise(group, entry)}

    def numbers(self, name: str) -> dict[str, Any]:
        """Return copies of the other entries of its state, such as the step."""
        state, entries = self._first.states[self._group_of[name]], self.entries(name)
        return {entry: copy.deepcopy(value) for entry, value in state.items() if entry not in entries}

    def whole_optimizer(self) -> dict[str, Any]:
        """Return the `state_dict` of an optimizer of the whole, unsharded parameters."""
        order = list(self.weights) if self._shuffled else list(self.shapes)
        states: dict[int, dict[str, Any]] = {}
        groups = self.param_groups
        for place, group in enumerate(groups):
            names = [name for name in order if name in self.shapes and self.param_group_of(name) == place]
            group["params"] = list(range(len(states), len(states) + len(names)))
            for name in names:
                shape = self.shapes[name]
                whole = {entry: self.read(name, entry).view(shape) for entry in self.entries(name)}
                states[len(states)] = {**self.numbers(name), **whole}
        return {"state": {number: state for number, state in states.items() if state}, "param_groups": groups}

    def read(self, name: str, entry: str | None = None, offset: int = 0, count: int | None = None) -> torch.Tensor:
        """Return elements of a trained parameter, or of an entry of its state, as a flat tensor.

        Args:
            name: of the parameter.
            entry: of its state, see `entries`; None for the optimizer's copy of the parameter itself.
            offset: the first element.
            count: number of elements, by default all.
        """
        end = self.shapes[name].numel() if count is None else offset + count
        found: list[torch.Tensor] = []
        for process, group, start, first, length in self._pieces[name]:
            part = self._parts[process]
            flat = part.flats[group] if entry is None else part.states[group][entry]
            begin, stop = max(offset, first), min(end, first + length)
            if begin < stop:
                found.append(flat.detach()[start + begin - first : start + stop - first])
        return torch.cat(found) if found else torch.empty(0, device="cpu")

    @cached_property
    def _group_of(self) -> dict[str, int]:
        return {name: group for group, shapes in enumerate(self._first.shapes) for name in shapes}


class _Weights(Mapping[str, torch.Tensor]):
    """Implementation of `ZeroStates.weights`."""

    def __init__(self, states: ZeroStates, models: Sequence[Mapping[str, Any]], in_parts: bool) -> None:
        self._states = states
        self._module: Mapping[str, Any] = models[0]["module"]
        self._frozen: dict[str, tuple[torch.Size, list[torch.Tensor]]] = {}
        for name, shape in ((models[0].get("frozen_param_shapes") or {}) if in_parts else {}).items():
            fragments = [model["frozen_param_fragments"][name].flatten() for model in models]
            each = -(-torch.Size(shape).numel() // len(models))
            if any(fragment.numel() != each for fragment in fragments):
                raise ValueError(f"{states.folder} is damaged: there are not all elements of {name}.")
            self._frozen[name] = torch.Size(shape), fragments
        buffers = set(models[0]["buffer_names"])
        tensors = [name for name, value in self._module.items() if isinstance(value, torch.Tensor)]
        whole = {name for name in tensors if not in_parts or name in buffers}
        known = whole | self._frozen.keys() | states.shapes.keys()
        self.tied = tied = {name: source for name, source in models[0]["shared_params"].items() if source in known}
        everything = [*(name for name in tensors if name in known | tied.keys()), *states.shapes, *self._frozen, *tied]
        self._sources = {name: tied.get(name, name) for name in everything}

    def __getitem__(self, name: str) -> torch.Tensor:
        source = self._sources[name]
        if source in self._states.shapes:
            return self._states.read(source).view(self._states.shapes[source])
        if source in self._frozen:
            shape, fragments = self._frozen[source]
            return torch.cat(fragments)[: shape.numel()].view(shape)
        return self._module[source]

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _is_on(config: Any, section: str, key: str) -> bool:
    within = config.get(section) if isinstance(config, Mapping) else None
    return isinstance(within, Mapping) and within.get(key) is True


def _options(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and one == other
