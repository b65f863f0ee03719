"""Where a training stands in its data: written into checkpoints, and found again by the run that goes on."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ...lightning_modules import checkpoints
from ...lightning_modules.common.safe_serialization import UnsafeValueError, to_plain
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.uneven_inputs import UnevenInputs, may_be_uneven
from ...lightning_modules.training.accumulation import Reader, WindowLoader
from ..evaluation.results import TrainingLength
from .elastic import Elastic

if TYPE_CHECKING:
    from .trainer_module import TrainerModule

logger = logging.getLogger(__name__)


class DataPosition(Elastic):
    """Epoch, window and the state of the loader; and what became of them where the run is dealt out differently."""

    def _save_data_state(self, output_dir: str) -> None:
        """Every process writes where it stands; outside of a training there is nothing to say."""
        run = self._run
        if run is None:
            return
        epoch, done = run.next_position
        with run.interrupted_evaluation.generators_before():
            state = {**run.windows.state_dict(), "epoch": epoch, "done": done}
        evaluated = {key: getattr(loader, "worker_states", None) for key, loader in self._eval_dataloaders.items()}
        state |= self._dealing() | {"windows": run.windows.windows, "evaluated": evaluated}
        state |= {"ahead": self._steps_ahead}
        state |= {"ended": run.epoch_is_over, "progress": run.progress()}
        state |= {"in_evaluation": run.interrupted_evaluation.state()}
        checkpoints.save_torch(_as_plain(state), self._data_state_file(output_dir, self.args.process_index))

    def _windows(
        self, dataloader: DataLoader, length: TrainingLength, checkpoint: str | None, read: Reader
    ) -> tuple[WindowLoader, TrainingLength]:
        """The data from where the training goes on, and how long the training is from there."""
        self._steps_ahead = 0
        sized = has_length(dataloader)
        stored = None if checkpoint is None else self._data_state(checkpoint)
        epoch, done, loader_state = 0, 0, None
        if checkpoint is not None:
            epoch, done, loader_state = self._position(length, sized, stored, checkpoint)
            length = self._length_from(length, sized, epoch, done, stored)
        windows = WindowLoader(
            dataloader,
            accumulation=self.args.gradient_accumulation_steps,
            batches=length.steps_in_epoch if sized else None,
            windows=length.num_update_steps_per_epoch,
            read=read,
        )
        if may_be_uneven(dataloader):
            windows.together = UnevenInputs("Training data")
        if checkpoint is None:
            return windows, length
        self._data_loading.evaluated_before = {} if stored is None else stored["evaluated"]
        if self.args.ignore_data_skip and done < windows.windows:
            done, loader_state = 0, _from_its_start(loader_state)
        if self.state.global_step >= length.max_steps and stored is not None and not stored["ended"]:
            done = windows.windows  # all steps are taken, and the end of the epoch is still to come
        windows.start_at(epoch, done, on_positioned=lambda: self._at_position(checkpoint), loader_state=loader_state)
        return windows, length

    def _at_position(self, checkpoint: str) -> None:
        """Have the generators as they were, and begin with the evaluation in which the training was interrupted."""
        self._load_rng_state(checkpoint)
        if self._run is not None:
            self._run.interrupted_evaluation.make_up()

    def _save_rng_state(self, output_dir: str) -> None:
        """In the middle of an evaluation as they were before it, for it is made anew by whoever goes on from here."""
        with contextlib.nullcontext() if self._run is None else self._run.interrupted_evaluation.generators_before():
            super()._save_rng_state(output_dir)

    def _apply_progress(self, run: TrainerModule, checkpoint: str | None) -> None:
        """Go on with what the next log is made of."""
        stored = None if checkpoint is None else self._data_state(checkpoint)
        run.interrupted_evaluation.owed = None if stored is None else stored["in_evaluation"]
        if stored is None or stored["progress"] is None:
            return
        progress = self._progress_of_all(stored, str(checkpoint))
        if progress is not None:
            run.apply_progress(progress)

    def _position(
        self, length: TrainingLength, sized: bool, stored: dict[str, Any] | None, checkpoint: str
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Epoch, window and state of the loader where the training goes on."""
        counted = (*self._counted_position(length, sized), None)
        if stored is None:
            return counted
        if stored["layout"] == self._layout():
            if not sized or stored["windows"] == length.num_update_steps_per_epoch:
                return stored["epoch"], stored["done"], stored["loader"]
            logger.warning(
                "An epoch had %s steps when the checkpoint was made, and has %s now: the data is not the same.",
                stored["windows"],
                length.num_update_steps_per_epoch,
            )
            return counted
        return self._position_dealt_out_anew(length, stored, checkpoint)

    def _counted_position(self, length: TrainingLength, sized: bool) -> tuple[int, int]:
        """What follows from the steps alone, as in the reference."""
        if sized:
            return divmod(self.state.global_step, length.num_update_steps_per_epoch)
        epoch, part = divmod(self.state.epoch, 1)
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
