"""Where a training stands in its data: written into checkpoints, and found again by the run that goes on."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ...lightning_modules import checkpoints
from ...lightning_modules.common.safe_serialization import UnsafeValueError, to_plain
from ...lightning_modules.common.seeding import load_rng_file, restore_rng_state, save_rng_file
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.uneven_inputs import UnevenInputs, may_be_uneven
from ...lightning_modules.training.accumulation import Reader, WindowLoader
from ..evaluation.results import TrainingLength
from .elastic import ElasticResumption

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer
    from ..trainer.trainer_module import TrainerModule

logger = logging.getLogger(__name__)


class DataPosition:
    """Epoch, window, the state of the loader, and the random generators.

    Args:
        host: the Trainer.
        elastic: finds the position where the batches are laid out differently.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer, elastic: ElasticResumption) -> None:
        self.host = host
        self.elastic = elastic
        self.evaluated_before: dict[str, Any] = {}
        """The states of the workers of evaluation loaders, by the names of the loaders."""

    def save(self, folder: str, run: TrainerModule, loaders: Mapping[str, Any]) -> None:
        """Write where this process stands; every one does.

        Args:
            folder: the checkpoint.
            run: the training.
            loaders: those for evaluations whose workers stay alive, by name.
        """
        epoch, done = run.next_position
        with run.interrupted_evaluation.generators_before():
            state = {**run.windows.state_dict(), "epoch": epoch, "done": done}
        state |= {
            **self.elastic.state(),
            "windows": run.windows.windows,
            "evaluated": {key: getattr(loader, "worker_states", None) for key, loader in loaders.items()},
            "ended": run.epoch_is_over,
            "progress": run.progress(),
            "in_evaluation": run.interrupted_evaluation.state(),
        }
        checkpoints.save_torch(_as_plain(state), self.elastic.stored.path(folder, self.host.args.process_index))

    def windows(
        self,
        dataloader: DataLoader,
        length: TrainingLength,
        checkpoint: str | None,
        read: Reader,
        on_positioned: Callable[[], None],
    ) -> tuple[WindowLoader, TrainingLength]:
        """Return the data from where the training goes on, and how long the training is from there.

        Args:
            dataloader: all of the data.
            length: of a training without a checkpoint.
            checkpoint: the folder to go on from.
            read: micro-batches of a window.
            on_positioned: called when the loader is where the training goes on.
        """
        host, elastic = self.host, self.elastic
        elastic.steps_ahead = 0
        sized = has_length(dataloader)
        stored = elastic.stored.read(checkpoint)
        epoch, done, loader_state = 0, 0, None
        if checkpoint is not None:
            epoch, done, loader_state = self._find(length, sized, stored, checkpoint)
            length = elastic.length_from(length, sized, epoch, done, stored)
        windows = WindowLoader(
            dataloader,
            accumulation=host.args.gradient_accumulation_steps,
            batches=length.steps_in_epoch if sized else None,
            windows=length.num_update_steps_per_epoch,
            read=read,
        )
        if may_be_uneven(dataloader):
            windows.together = UnevenInputs("Training data")
        if checkpoint is None:
            return windows, length
        self.evaluated_before = {} if stored is None else stored["evaluated"]
        if host.args.ignore_data_skip and done < windows.windows:
            done, loader_state = 0, _from_its_start(loader_state)
        if host.state.global_step >= length.max_steps and stored is not None and not stored["ended"]:
            done = windows.windows  # all steps are taken, and the end of the epoch is still to come
        windows.start_at(epoch, done, on_positioned=on_positioned, loader_state=loader_state)
        return windows, length

    def apply_progress(self, run: TrainerModule, checkpoint: str | None) -> None:
        """Let a run go on with what its next log is made of, and with the evaluation in which it was interrupted."""
        stored = self.elastic.stored.read(checkpoint)
        run.interrupted_evaluation.owed = None if stored is None else stored["in_evaluation"]
        progress = None if stored is None else self.elastic.progress(stored, str(checkpoint))
        if progress is not None:
            run.apply_progress(progress)

    def save_rng(self, folder: str, run: TrainerModule | None) -> None:
        """Write the generators; in the middle of an evaluation as they were before it, for it is made anew."""
        args, distributed = self.host.args, self.host.args.world_size > 1
        name = checkpoints.rng_state_name(args.process_index if distributed else None)
        with contextlib.nullcontext() if run is None else run.interrupted_evaluation.generators_before():
            save_rng_file(os.path.join(folder, name), distributed)

    def load_rng(self, checkpoint: str) -> None:
        """Have the generators as they were; the files are there for each process, or a warning says so."""
        args, distributed = self.host.args, self.host.args.world_size > 1
        name = checkpoints.rng_state_name(args.process_index if distributed else None)
        path = self.elastic.stored.rng_path(checkpoint) or os.path.join(checkpoint, name)
        if os.path.isfile(path):
            restore_rng_state(load_rng_file(path), distributed)
        else:
            logger.warning("There is no %s: the numbers will not be those of an uninterrupted run.", path)

    def _find(
        self, length: TrainingLength, sized: bool, stored: dict[str, Any] | None, checkpoint: str
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Epoch, window and state of the loader where the training goes on."""
        if stored is None:
            return (*self._counted(length, sized), None)
        if stored["layout"] != self.elastic.layout():
            return self.elastic.position(length, stored, checkpoint)
        if not sized or stored["windows"] == length.num_update_steps_per_epoch:
            return stored["epoch"], stored["done"], stored["loader"]
        logger.warning(
            "An epoch had %s steps when the checkpoint was made, and has %s now: the data is not the same.",
            stored["windows"],
            length.num_update_steps_per_epoch,
        )
        return (*self._counted(length, sized), None)

    def _counted(self, length: TrainingLength, sized: bool) -> tuple[int, int]:
        """What follows from the steps alone, as in the reference."""
        state = self.host.state
        if sized:
            return divmod(state.global_step, length.num_update_steps_per_epoch)
        epoch, part = divmod(state.epoch, 1)
        return int(epoch), round(part * length.num_update_steps_per_epoch)


def _from_its_start(loader_state: dict[str, Any] | None) -> dict[str, Any] | None:
    """What gives the epoch its order, and no more."""
    if loader_state is None or "handed_out" not in loader_state:
        return None
    return {**loader_state, "next_seed": loader_state["seed"], "workers": None}


def _as_plain(state: dict[str, Any]) -> Any:
    """Without the loader's state where that is not made of plain values: it then reads its way to the position."""
    try:
        return to_plain(state)
    except UnsafeValueError as error:
        logger.warning("The state of the data loader is not saved, as it holds what a checkpoint cannot: %s.", error)
        return to_plain({**state, "loader": None})
