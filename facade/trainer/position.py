"""Where a training stands in its data: written into checkpoints, and found again by the run that goes on."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ...lightning_modules import checkpoints
from ...lightning_modules.plain import NotPlainError, from_plain, to_plain
from ...lightning_modules.windows import Reader, WindowLoader
from ..results import TrainingLength
from ..sizes import has_length
from .saving import Saving

if TYPE_CHECKING:
    from ..run import TrainingRun

logger = logging.getLogger(__name__)

_UNTOLD = {"evaluated": (), "ended": True, "progress": None}
"""What Lightning does not say of itself, see `lightning_modules.resumable`."""


class DataPosition(Saving):
    """Epoch, window and the state of the loader; and what became of them where the run is dealt out differently."""

    def _save_data_state(self, output_dir: str) -> None:
        """Every process writes where it stands; outside of a training there is nothing to say."""
        run = self._run
        if run is None:
            return
        epoch, done = run.next_position
        state = {**run.windows.state_dict(), "epoch": epoch, "done": done}
        evaluated = {key: getattr(loader, "worker_states", None) for key, loader in self._eval_dataloaders.items()}
        state |= {"windows": run.windows.windows, "layout": self._layout(), "evaluated": evaluated}
        state |= {"ended": run.epoch_is_over, "progress": run.progress()}
        checkpoints.save_torch(_as_plain(state), self._data_state_file(output_dir, self.args.process_index))

    def _data_state(self, checkpoint: str) -> dict[str, Any] | None:
        """What this process, or the first one, wrote into a checkpoint; None if it is of another library."""
        for rank in (self.args.process_index, 0):
            path = self._data_state_file(checkpoint, rank)
            if os.path.isfile(path):
                return {**_UNTOLD, **from_plain(checkpoints.load_torch(path))}
        return None

    def _data_state_file(self, folder: str, rank: int) -> str:
        return os.path.join(folder, checkpoints.data_state_name(rank))

    def _layout(self) -> dict[str, int]:
        return {
            "world_size": self.args.world_size,
            "batch_size": self._share_of(self._train_batch_size),
            "accumulation": self.args.gradient_accumulation_steps,
        }

    @contextlib.contextmanager
    def _same_global_batch(self, checkpoint: str | None) -> Iterator[None]:
        """Keep the samples of a step where only the number of processes changed: accumulation makes up for it.

        In the meantime `self.args` is a copy of the arguments with the accumulation that is in use.
        """
        stored = None if checkpoint is None else self._data_state(checkpoint)
        given, steps = self.args, self._accumulation_instead(stored)
        if steps is None or stored is None:
            yield
            return
        logger.warning(
            "The checkpoint was made by %s processes, and now there are %s: gradient_accumulation_steps=%s instead of "
            "%s keeps the %s samples of a step.",
            stored["layout"]["world_size"],
            given.world_size,
            steps,
            given.gradient_accumulation_steps,
            _samples(stored["layout"]),
        )
        self.args = copy.copy(given)
        self.args.gradient_accumulation_steps = self.accelerator.gradient_accumulation_steps = steps
        try:
            yield
        finally:
            self.args = given
            self.accelerator.gradient_accumulation_steps = given.gradient_accumulation_steps

    def _accumulation_instead(self, stored: dict[str, Any] | None) -> int | None:
        """The accumulation that keeps the global batch, if nothing but the number of processes changed."""
        if stored is None:
            return None
        before, now = stored["layout"], self._layout()
        if before == now or {**before, "world_size": now["world_size"]} != now:
            return None
        steps, rest = divmod(_samples(before), now["world_size"] * now["batch_size"])
        return None if rest or steps == 0 else steps

    def _windows(
        self, dataloader: DataLoader, length: TrainingLength, checkpoint: str | None, read: Reader
    ) -> WindowLoader:
        windows = WindowLoader(
            dataloader,
            accumulation=self.args.gradient_accumulation_steps,
            batches=length.steps_in_epoch if has_length(dataloader) else None,
            windows=length.num_update_steps_per_epoch,
            read=read,
        )
        if checkpoint is None:
            return windows
        stored = self._data_state(checkpoint)
        self._evaluated_before = {} if stored is None else stored["evaluated"]
        epoch, done, loader_state = self._position(length, has_length(dataloader), stored)
        if self.args.ignore_data_skip and done < windows.windows:
            done, loader_state = 0, _from_its_start(loader_state)
        if self.state.global_step >= length.max_steps and stored is not None and not stored["ended"]:
            done = windows.windows  # all steps are taken, and the end of the epoch is still to come
        restore = lambda: self._load_rng_state(checkpoint)  # noqa: E731
        windows.start_at(epoch, done, on_positioned=restore, loader_state=loader_state)
        return windows

    def _take_up_progress(self, run: TrainingRun, checkpoint: str | None) -> None:
        """Go on with what the next log is made of, where as many processes train as before."""
        stored = None if checkpoint is None else self._data_state(checkpoint)
        if stored is None or stored["progress"] is None:
            return
        if stored["layout"]["world_size"] == self.args.world_size:
            run.take_up_progress(stored["progress"])

    def _position(
        self, length: TrainingLength, sized: bool, stored: dict[str, Any] | None
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
        return self._position_dealt_out_anew(length, stored)

    def _counted_position(self, length: TrainingLength, sized: bool) -> tuple[int, int]:
        """What follows from the steps alone, as in the reference."""
        if sized:
            return divmod(self.state.global_step, length.num_update_steps_per_epoch)
        epoch, part = divmod(self.state.epoch, 1)
        return int(epoch), round(part * length.num_update_steps_per_epoch)

    def _position_dealt_out_anew(
        self, length: TrainingLength, stored: dict[str, Any]
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Where the samples seen so far end, in windows of another size; or with other processes, of the same."""
        before, now = stored["layout"], self._layout()
        seen, each = stored["done"] * _samples(before), _samples(now)
        done, rest = divmod(seen, each)
        changed = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name])
        if _samples(before) == each:
            logger.warning(
                "The training goes on with %s; a step still takes %s samples, in the same order.", changed, each
            )
        else:
            logger.warning(
                "The training goes on with %s: a step takes %s samples instead of %s, so that the numbers will differ. "
                "%s samples of this epoch are seen%s.",
                changed,
                each,
                _samples(before),
                seen,
                f", the last {rest} of which are seen again" if rest else "",
            )
        if stored["done"] >= stored["windows"]:
            return stored["epoch"], length.num_update_steps_per_epoch, None
        return stored["epoch"], min(done, length.num_update_steps_per_epoch), None


def _samples(layout: dict[str, int]) -> int:
    """Samples of all processes in one step."""
    return layout["world_size"] * layout["batch_size"] * layout["accumulation"]


def _from_its_start(loader_state: dict[str, Any] | None) -> dict[str, Any] | None:
    """What gives the epoch its order, and no more."""
    if loader_state is None or "handed_out" not in loader_state:
        return None
    return {**loader_state, "next_seed": loader_state["seed"], "workers": None}


def _as_plain(state: dict[str, Any]) -> Any:
    """Without the loader's state where that is not made of plain values: it then reads its way to the position."""
    try:
        return to_plain(state)
    except NotPlainError as error:
        logger.warning("The state of the data loader is not saved, as it holds what a checkpoint cannot: %s.", error)
        return to_plain({**state, "loader": None})
