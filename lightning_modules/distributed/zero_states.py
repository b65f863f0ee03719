"""Assemble full weights and optimizer states from the files of all ranks of a ZeRO run.

DeepSpeed need not be installed, because objects in its files are read as plain values. Files are
memory-mapped, so that only the requested elements of a tensor are read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..common.local_paths import StrPath
from .zero_files import FULL_MODEL_NAME, StandIn, load_file, saved_states
from .zero_partition import MASTER_WEIGHTS, ZeroPartition


class SavedScaler(NamedTuple):
    """Saved loss scaler of DeepSpeed."""

    class_name: str
    attributes: dict[str, Any]


class ZeroStates:
    """Weights and optimizer states of a checkpoint, assembled from the files of all ranks.

    Args:
        folder: the folder of the checkpoint.

    Attributes:
        folder: DeepSpeed's folder in the checkpoint.
        shapes: the shape of each trained parameter, by name.
        weights: all weights by name. Each is assembled on access. Trained weights have the
            precision of the optimizer's copy, others that of the model.
        tied: for each tied weight, the name under which its values are stored.
        param_groups: options of each parameter group, such as the learning rate.

    Raises:
        ValueError: the folder has no ZeRO states, or they are incomplete, damaged or inconsistent.
    """

    def __init__(self, folder: StrPath) -> None:
        saved = saved_states(folder)
        if saved is None or saved.processes is None:
            raise ValueError(
                f"{folder} has no states of DeepSpeed's ZeRO, stages 1 to 3. Stage 0 saves full "
                "weights: load those instead."
            )
        self.folder = Path(folder, saved.tag)
        if (self.folder / "offloaded_tensors").exists():
            raise ValueError(
                f"{self.folder} has states offloaded to NVMe: resume with the same number of "
                "processes in the same stage."
            )
        try:
            self._read_models(saved.processes)
            self._read_optimizers(saved.processes)
            self._require_all_elements()
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise ValueError(
                f"{self.folder} is damaged, or was not written by DeepSpeed ({error!r})."
            ) from error

    def _read_models(self, ranks: int) -> None:
        """Open the model files: one in stages 1 and 2, one for each rank in stage 3."""
        full_model = self.folder / FULL_MODEL_NAME
        is_stage_3 = not full_model.is_file()
        files = self._files("model", ranks) if is_stage_3 else [full_model]
        self._models = [load_file(path) for path in files]
        self._model = self._models[0]

        # Collect the shapes of trained parameters and their flat tensors.
        self._groups = self._model["param_shapes"]
        self.shapes: dict[str, torch.Size] = {}
        self._group_of: dict[str, int] = {}
        for number, group in enumerate(self._groups):
            for name, shape in group.items():
                self.shapes[name] = torch.Size(shape)
                self._group_of[name] = number

        # In stage 3, the module's state dict has full buffers but empty parameters. Shards of
        # frozen parameters are in a separate entry.
        names_in_module: list[str] = []
        for name, value in self._model["module"].items():
            if isinstance(value, torch.Tensor):
                names_in_module.append(name)
        full_names = set(names_in_module)
        self._frozen: dict[str, torch.Size] = {}
        if is_stage_3:
            full_names &= set(self._model["buffer_names"])
            frozen_shapes = self._model.get("frozen_param_shapes") or {}
            self._frozen = {name: torch.Size(shape) for name, shape in frozen_shapes.items()}

        # The values of a tied weight are stored under the name of another one, its source.
        stored_names = full_names | self._frozen.keys() | self.shapes.keys()
        self.tied: dict[str, str] = {}
        for name, source in self._model["shared_params"].items():
            if source in stored_names:
                self.tied[name] = source

        # Map each weight to the name under which it is stored, in the order of the model. The dict
        # keeps the first position of a repeated name.
        names: list[str] = []
        for name in names_in_module:
            if name in stored_names or name in self.tied:
                names.append(name)
        names += [*self.shapes, *self._frozen, *self.tied]
        self._sources = {name: self.tied.get(name, name) for name in names}
        self.weights: Mapping[str, torch.Tensor] = _LazyWeights(self._sources, self._weight)

    def _read_optimizers(self, ranks: int) -> None:
        """Open the optimizer files of all ranks."""
        self._partitions: list[ZeroPartition] = []
        for rank, path in enumerate(self._files("optim", ranks)):
            content = load_file(path)["optimizer_state_dict"]
            saved_ranks = content["partition_count"]
            if isinstance(saved_ranks, list):
                # There is one count for each group.
                saved_ranks = max(saved_ranks)
            if saved_ranks != ranks:
                raise ValueError(
                    f"{self.folder} has the states of {ranks} of {saved_ranks} processes. Copy "
                    "the missing files to it."
                )

            # `part` has the elements of this rank. Scalars are the other entries, such as the step.
            try:
                part = ZeroPartition(content, self._groups, rank, ranks)
                scalars = [part.scalars(group) for group in range(len(part.states))]
            except ValueError as error:
                raise ValueError(f"{path} cannot be read: it holds {error}.") from error

            # Ranks may only differ in the elements that they own.
            self._partitions.append(part)
            if rank == 0:
                self.param_groups = part.options
                self._scalars = scalars
                self._entries = part.entries
                continue
            has_same_options = part.options == self.param_groups
            has_same_states = scalars == self._scalars and part.entries == self._entries
            if not has_same_options or not has_same_states:
                raise ValueError(
                    f"{self.folder}: the states of process {rank} do not match those of process 0."
                )

    def _files(self, kind: str, ranks: int) -> list[Path]:
        """Return the files of all ranks, in order."""
        files: list[Path] = []
        for rank in range(ranks):
            pattern = f"*zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"
            files_of_rank = list(self.folder.glob(pattern))
            if not files_of_rank:
                raise ValueError(f"{self.folder} lacks the {kind}_states of process {rank}.")
            if len(files_of_rank) > 1:
                raise ValueError(
                    f"{self.folder} has two files of the {kind}_states of process {rank}."
                )
            files += files_of_rank
        return files

    def _weight(self, name: str) -> torch.Tensor:
        """Assemble one full weight."""
        source = self._sources[name]
        if source in self.shapes:
            return self.read(source).view(self.shapes[source])
        if source in self._frozen:
            # The last fragment is padded.
            shape = self._frozen[source]
            elements = torch.cat(self._fragments(source))[: shape.numel()]
            return elements.view(shape)
        return self._model["module"][source]

    def _fragments(self, name: str) -> list[torch.Tensor]:
        """Return the flattened shards of a frozen parameter, by rank."""
        fragments: list[torch.Tensor] = []
        for model in self._models:
            fragment = model["frozen_param_fragments"][name]
            fragments.append(fragment.flatten())
        return fragments

    def _require_all_elements(self) -> None:
        """Check that the files contain all elements of each weight."""
        # Count the elements of each trained parameter in the files.
        found_elements = dict.fromkeys(self.shapes, 0)
        for rank, part in enumerate(self._partitions):
            for name, piece in part.pieces.items():
                if part.values(piece, MASTER_WEIGHTS).numel() != piece.length:
                    raise ValueError(
                        f"{self.folder} is damaged: process {rank} does not have its part of "
                        f"{name}."
                    )
                found_elements[name] += piece.length

        incomplete: list[str] = []
        for name, shape in self.shapes.items():
            if found_elements[name] != shape.numel():
                incomplete.append(name)
        for name, shape in self._frozen.items():
            # Round up, because the last shards are padded.
            part_size = -(-shape.numel() // len(self._models))
            if any(fragment.numel() != part_size for fragment in self._fragments(name)):
                incomplete.append(name)
        if incomplete:
            raise ValueError(
                f"{self.folder} is damaged: elements of {', '.join(incomplete)} are missing."
            )

    @property
    def counters(self) -> dict[str, int]:
        """Return the engine's counters of steps and samples, by attribute name."""
        counters: dict[str, int] = {}
        for name in ("global_steps", "global_samples", "skipped_steps"):
            value = self._model.get(name)
            if isinstance(value, int):
                counters[name] = value
        return counters

    @property
    def scaler(self) -> SavedScaler | None:
        """Return the loss scaler; None without one."""
        scaler = self._partitions[0].scaler
        if not isinstance(scaler, StandIn):
            return None
        return SavedScaler(type(scaler).__name__, dict(vars(scaler)))

    def param_group_of(self, name: str) -> int:
        """Return the index of a trained parameter's parameter group."""
        return self._partitions[0].param_group_of[self._group_of[name]]

    def entries(self, name: str) -> set[str]:
        """Return the names of the elementwise entries of a parameter's state."""
        return self._entries[self._group_of[name]]

    def scalars(self, name: str) -> dict[str, Any]:
        """Return copies of the other entries of a parameter's state, such as the step."""
        return copy.deepcopy(self._scalars[self._group_of[name]])

    def read(
        self,
        name: str,
        entry: str | None = MASTER_WEIGHTS,
        offset: int = 0,
        count: int | None = None,
    ) -> torch.Tensor:
        """Read elements of a trained parameter, or of an entry of its state, as a flat tensor.

        Args:
            name: the name of the parameter.
            entry: the entry of its state (see `entries`), or `MASTER_WEIGHTS`.
            offset: index of the first element.
            count: number of elements. The default is all.
        """
        stop = self.shapes[name].numel()
        if count is not None:
            stop = offset + count

        values = [torch.empty(0, device="cpu")]
        for part in self._partitions:
            piece = part.pieces.get(name)
            if piece is None:
                continue
            # Convert to indices within the piece. The slice is empty if they do not overlap.
            first = max(offset - piece.offset, 0)
            last = max(stop - piece.offset, 0)
            values.append(part.values(piece, entry)[first:last])
        return torch.cat(values)

    def full_optimizer(self) -> dict[str, Any]:
        """Return the `state_dict` that an optimizer of the unsharded parameters would have."""
        # With `round_robin_gradients`, parameters are not stored in the order of the model.
        names = list(self.shapes)
        zero_section = self._model.get("ds_config", {}).get("zero_optimization", {})
        if zero_section.get("round_robin_gradients") is True:
            names = [name for name in self.weights if name in self.shapes]

        states: dict[int, dict[str, Any]] = {}
        number = 0
        groups = [{**options, "params": []} for options in self.param_groups]
        for group_index, group in enumerate(groups):
            for name in names:
                if self.param_group_of(name) != group_index:
                    continue
                state = self.scalars(name)
                for entry in self.entries(name):
                    state[entry] = self.read(name, entry).view(self.shapes[name])

                # Some optimizers keep no state.
                if state:
                    states[number] = state
                group["params"].append(number)
                number += 1
        return {"state": states, "param_groups": groups}


class _LazyWeights(Mapping[str, torch.Tensor]):
    """Weights by name, which are read on access.

    Args:
        names: the names of all weights.
        read: returns the weight with a name.
    """

    def __init__(self, names: Mapping[str, str], read: Callable[[str], torch.Tensor]) -> None:
        self._names = names
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
