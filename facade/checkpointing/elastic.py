"""Resumption with another number of processes or another batch size than that of the checkpoint."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from ...callbacks.recording import joined_sums
from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import data_state_name, rng_state_name
from ...lightning_modules.common.safe_serialization import from_plain
from ...lightning_modules.common.seeding import load_rng_file
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.epoch_loader import EpochLoader
from ...lightning_modules.data.loader_state import with_other_batches
from ...lightning_modules.training.accumulation import LossMeter
from ..arguments.deepspeed_config import with_open_batches
from ..arguments.parallelism import copies_of_batches, data_rank, data_ranks, samples_of_rank
from ..evaluation.results import TrainingLength

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)

_DEFAULTS: dict[str, Any] = {
    **{"evaluated": (), "ended": True, "copies": 1, "ahead": 0},
    **dict.fromkeys(("progress", "in_evaluation", "asked", "group")),
}
"""Defaults for positions that plain Lightning wrote, see `lightning_modules.tasks.resuming`."""

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "done", "windows", "copies"), int),
    **{"ended": bool, "layout": Mapping, "group": int | None},
    **dict.fromkeys(("loader", "asked", "in_evaluation", "progress"), Mapping | None),
}
"""Types of the entries of a position."""

_NAMES = {
    "world_size": "world_size",
    "batch_size": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
}
"""Names of the arguments behind the entries of a layout."""


class StoredPositions:
    """Read the data positions and random generators that the processes saved in checkpoints.

    Args:
        host: the Trainer, whose arguments give the rank.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host

    def read(self, checkpoint: str | None, rank: int | None = None) -> dict[str, Any] | None:
        """Return the position of a process; None without a checkpoint, or for one of another library.

        Args:
            checkpoint: the folder.
            rank: data-parallel rank; by default that of this process or, as each machine may only hold the files of its
                own processes, the first with a file.
        """
        if checkpoint is None:
            return None
        wanted = data_rank(self.host.args) if rank is None else rank
        path = self.path(checkpoint, self._rank_before(checkpoint, wanted))
        there = [path] if os.path.isfile(path) else self._all_paths(checkpoint) if rank is None else []
        return self._load(there[0]) if there else None

    def path(self, folder: str, rank: int) -> str:
        """Return the path of the position of a process."""
        return os.path.join(folder, data_state_name(rank))

    def _all_paths(self, checkpoint: str) -> list[str]:
        """Return the existing files of all processes in the order of ranks."""
        first = Path(self.path(checkpoint, 0))
        found = first.parent.glob(first.name.replace("0", "*"))
        return sorted(map(str, found), key=lambda path: (len(path), path))

    def rng_path(self, checkpoint: str) -> str | None:
        """Return the file of generators of this rank; rank 0 accepts that of a run with any number of processes."""
        args = self.host.args
        rank, several = data_rank(args), args.world_size > 1
        ranks = [self._rank_before(checkpoint, rank) if several else None, *([0, None] if rank == 0 else [])]
        paths = [os.path.join(checkpoint, rng_state_name(name)) for name in ranks]
        return next((path for path in paths if os.path.isfile(path)), None)

    def _load(self, path: str) -> dict[str, Any]:
        written = checkpoints.load_torch(path)
        try:
            state = {**_DEFAULTS, **from_plain(written)}
            for name, kinds in _KINDS.items():
                if not isinstance(state[name], kinds):
                    raise TypeError(f"{name}={state[name]!r:.60}, but expected is {kinds}")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            instead = "take another checkpoint, or delete the file to count from the step"
            raise ValueError(f"{path} does not hold a position in the data ({error!r}): {instead}.") from error
        return state

    def _rank_before(self, checkpoint: str, rank: int) -> int:
        """Return the process that read this data for the checkpoint; several may share it (`copies_of_batches`)."""
        if rank == 0:
            return 0
        own = self.path(checkpoint, self.host.args.process_index)
        there = [own] if os.path.isfile(own) else self._all_paths(checkpoint)
        return rank * (self._load(there[0])["copies"] if there else 1)


class ElasticResumption:
    """Keep the samples per step and their order if possible; warn otherwise.

    A checkpoint holds the layout of batches over processes (`layout`) and the arguments at that time (`asked`). If the
    arguments are unchanged, but not the number of processes, the samples per step are kept.

    Args:
        host: the Trainer.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host
        self.stored = StoredPositions(host)
        self.length_group: int | None = None
        """Batch size for grouping by length, kept to preserve the order; None for that of the arguments."""
        self.steps_ahead = 0
        """Steps by which the data position is ahead of the global step, if earlier steps were larger."""
        self._asked: dict[str, int] | None = None

    def layout(self) -> dict[str, int]:
        """Return the current layout of the batches of a step over processes."""
        args = self.host.args
        return {
            "world_size": data_ranks(args),
            "batch_size": samples_of_rank(args, self.host._train_batch_size),
            "accumulation": args.gradient_accumulation_steps,
            **({"tokens": args.max_tokens_per_batch} if args.max_tokens_per_batch else {}),
        }

    def state(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        args = self.host.args
        return {
            "layout": self.layout(),
            "copies": copies_of_batches(args),
            "asked": self._asked or _asked(args),
            "group": self.length_group or args.train_batch_size * args.gradient_accumulation_steps,
            "ahead": self.steps_ahead,
        }

    @contextlib.contextmanager
    def same_global_batch(self, checkpoint: str | None) -> Iterator[None]:
        """Keep the samples per step if only the number of processes changed.

        Within the block the arguments of the Trainer are a copy with the adjusted batch size and accumulation.
        """
        host, stored = self.host, self.stored.read(checkpoint)
        given, batch_size = host.args, host._train_batch_size
        self._asked = _asked(given)
        instead = self._adjusted(stored)
        self.length_group = self._group_of(stored, instead)
        if instead is not None:
            self._apply(*instead)
        try:
            yield
        finally:
            if instead is not None:
                host.args, host._train_batch_size = given, batch_size
                host.accelerator.apply_accumulation(given)
            self._asked = self.length_group = None

    def require_known_order(self, dataloader: Any, stored: dict[str, Any], checkpoint: str) -> None:
        """Refuse to resume in the middle of a stream whose samples would come in another order.

        Args:
            dataloader: the training data.
            stored: position in the checkpoint.
            checkpoint: the folder.

        Raises:
            ValueError: the stream was shared out in another way when the checkpoint was made.
        """
        first = self.stored.read(checkpoint, rank=0) or stored
        state = first["loader"]
        is_in_middle = 0 < stored["done"] < stored["windows"]
        if not isinstance(getattr(dataloader, "dataset", None), IterableDataset) or state is None or not is_in_middle:
            return
        if not isinstance(dataloader, EpochLoader) or "handed_out" not in state:
            return
        before, now = stored["layout"], self.layout()
        workers_before = (state.get("workers") or {}).get("workers", 0)
        workers_now = self.host.args.dataloader_num_workers
        config: Any = self.host.args.accelerator_config
        workers_decide = now["world_size"] > 1 and config.dispatch_batches is None
        changes = _changes(before, now)
        problem = None
        if before != now and workers_before > 1:
            problem = f"{workers_before} workers read it, whose batches alternate, and now {changes}"
        elif before == now and workers_decide and (workers_before > 1) != (workers_now > 1):
            problem = f"dataloader_num_workers is {workers_now} instead of {workers_before}, which decides who reads it"
        elif dataloader.files > 1 and before != now:
            problem = f"each process now reads its own files of it, with {changes}"
        elif before == now and state["files"] != dataloader.files:
            problem = "accelerator_config.dispatch_batches, which decides who reads which files of it, is another one"
        if problem is not None:
            raise ValueError(
                f"{checkpoint} was made in the middle of a stream, the rest of which cannot be read in the same order: "
                f"{problem}. Resume with the arguments and processes of the checkpoint, or set ignore_data_skip=True "
                "to begin the epoch again."
            )

    def position(
        self, length: TrainingLength, stored: dict[str, Any], checkpoint: str
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Return epoch, window and loader state after the samples seen so far."""
        before, now = stored["layout"], self.layout()
        if before.get("tokens") != now.get("tokens"):
            said = f"max_tokens_per_batch={now.get('tokens')}, but {before.get('tokens')} when {checkpoint} was made"
            raise ValueError(f"{said}: its place in an epoch of other batches is not known. Pass the same.")
        seen, each = stored["done"] * _samples(before), _samples(now)
        done, rest = divmod(seen, each)
        self._warn_of_change(before, now, seen, rest)
        if stored["done"] >= stored["windows"]:
            done = length.num_update_steps_per_epoch
        done = min(done, length.num_update_steps_per_epoch)
        first = self.stored.read(checkpoint, rank=0) or stored  # the order of rank 0 is that of all
        if _is_foreign(first["loader"]):
            alone = {**before, "accumulation": now["accumulation"]} == now
            return stored["epoch"], done, stored["loader"] if alone and not rest else None
        loader = self._same_order(first["loader"], done * now["accumulation"], checkpoint)
        if loader is not None and first["loader"].get("files", 1) > 1:
            loader["files_in_turn"] = [first["loader"]["files"], before["batch_size"]]
        return stored["epoch"], done, loader

    def length_from(
        self, length: TrainingLength, sized: bool, epoch: int, done: int, stored: dict[str, Any] | None
    ) -> TrainingLength:
        """Return the length of a training whose earlier steps took another number of samples.

        With `max_steps` the number of epochs is adjusted, with `num_train_epochs` the number of steps.

        Args:
            length: without a checkpoint.
            sized: whether an epoch has a length.
            epoch: epoch to resume in.
            done: completed steps of that epoch in the current layout.
            stored: position in the checkpoint.
        """
        if stored is None:
            return length
        args, each = self.host.args, length.num_update_steps_per_epoch
        self.steps_ahead = stored["ahead"]
        if stored["layout"] != self.layout():
            before = self.host.state.global_step + self._steps_left_out(stored)
            self.steps_ahead = epoch * each + done - before if sized else _ahead_in_stream(stored, done)
        if not sized:  # the stream must not restart before the remaining steps are taken
            windows = length.max_steps + max(self.steps_ahead, 0)
            batches = windows * args.gradient_accumulation_steps
            return length._replace(num_update_steps_per_epoch=windows, steps_in_epoch=batches)
        if self.steps_ahead == 0:
            return length
        if args.max_steps > 0:
            return length._replace(num_train_epochs=math.ceil((length.max_steps + self.steps_ahead) / each))
        max_steps = max(length.max_steps - self.steps_ahead, 0)
        if args.should_log:
            logger.warning(
                "num_train_epochs=%s takes %s steps, as those before the checkpoint took another number of samples.",
                args.num_train_epochs,
                max_steps,
            )
        return length._replace(max_steps=max_steps)

    def progress(self, stored: dict[str, Any], checkpoint: str) -> dict[str, Any] | None:
        """Return the meters of the next log; their mean if the number of processes changed.

        None if files of some processes are missing, as each machine may only hold its own.
        """
        processes = stored["layout"]["world_size"]
        if stored["progress"] is None or processes == data_ranks(self.host.args):
            return stored["progress"]
        states = [self.stored.read(checkpoint, rank) for rank in range(processes)]
        each = [state["progress"] for state in states if state is not None and state["progress"] is not None]
        if len(each) < processes:
            return None
        joined = LossMeter.joined([progress["losses"]["losses"] for progress in each])
        sums = joined_sums(progress.get("recorded", {}) for progress in each)
        recorded = {name: (total / processes, weights / processes) for name, (total, weights) in sums.items()}
        return {**each[0], "losses": {**each[0]["losses"], "losses": joined}, "recorded": recorded}

    def _adjusted(self, stored: dict[str, Any] | None) -> tuple[int, int] | None:
        """Return the batch size and accumulation that keep the samples per step; None if the arguments do."""
        if stored is None or self._asked_before(stored) != self._asked:
            return None
        now = self.layout()
        each, rest = divmod(_samples(stored["layout"]), now["world_size"])
        if rest or each == _unit(now) * now["accumulation"]:
            return None
        batch = next(size for size in range(min(_unit(now), each), 0, -1) if each % size == 0)
        return now["batch_size"] if "tokens" in now else batch, each // batch

    def _asked_before(self, stored: dict[str, Any]) -> dict[str, int]:
        """Return the arguments at the time of the checkpoint; without a record, those of its layout."""
        before = stored["layout"]
        unit = before["world_size"] if self._splits_batches else 1
        return stored["asked"] or {"batch": before["batch_size"] * unit, "accumulation": before["accumulation"]}

    @property
    def _splits_batches(self) -> bool:
        config: Any = self.host.args.accelerator_config
        return bool(config.split_batches)

    def _group_of(self, stored: dict[str, Any] | None, instead: tuple[int, int] | None) -> int | None:
        """Return the stored batch size for grouping by length if a step takes the same samples, else None."""
        now = self.layout()
        kept = {} if instead is None else {"batch_size": instead[0], "accumulation": instead[1]}
        samples = _samples({**now, **kept})
        if stored is None or samples != _samples(stored["layout"]):
            return None
        before, unit = stored["layout"], stored["layout"]["world_size"] if self._splits_batches else 1
        return stored["group"] or before["batch_size"] * unit * before["accumulation"]

    def _apply(self, batch_size: int, accumulation: int) -> None:
        host = self.host
        host.args = copy.copy(host.args)
        host._train_batch_size = batch_size * (data_ranks(host.args) if self._splits_batches else 1)
        host.args.per_device_train_batch_size = host._train_batch_size
        host.args.gradient_accumulation_steps = accumulation
        host.args.deepspeed = with_open_batches(host.args.deepspeed)
        host.accelerator.apply_accumulation(host.args)

    def _steps_left_out(self, stored: dict[str, Any]) -> int:
        """Return the steps skipped in epochs that a callback ended early, converted to the current layout."""
        position = stored["epoch"] * stored["windows"] + stored["done"]
        left_out = max(position - self.host.state.global_step - stored["ahead"], 0)
        return left_out * _samples(stored["layout"]) // _samples(self.layout())

    def _same_order(self, loader: dict[str, Any] | None, handed_out: int, checkpoint: str) -> dict[str, Any] | None:
        """Return a loader state that continues in the order drawn for the epoch."""
        if loader is None or "began" in loader:  # the generator at the start is all there is, and enough
            return loader
        if loader["start"] is None:
            return None
        path = self.stored.rng_path(checkpoint)
        rng = load_rng_file(path) if path is not None else loader["start"]
        return with_other_batches(loader, handed_out, rng)

    def _warn_of_change(self, before: dict[str, int], now: dict[str, int], seen: int, rest: int) -> None:
        if not self.host.args.should_log:
            return
        samples, each = _samples(before), _samples(now)
        of = "batches" if "tokens" in now else "samples"
        effect = f"a step still takes {each} {of}, in the same order"
        if samples != each:
            again = f", the last {rest} of which are seen again" if rest else ""
            effect = f"a step takes {each} {of} instead of {samples}, and {seen} of this epoch are seen{again}"
        logger.warning("The training goes on with %s: %s.", _changes(before, now), effect)


def _changes(before: dict[str, int], now: dict[str, int]) -> str:
    """Return which arguments have changed from one layout to another, with both values."""
    changed = [name for name in _NAMES if before[name] != now[name]]
    return ", ".join(f"{_NAMES[name]}={now[name]} instead of {before[name]}" for name in changed)


def _is_foreign(loader: dict[str, Any] | None) -> bool:
    """Return whether the state is of a foreign loader with its own state_dict, such as torchdata's."""
    return loader is not None and "handed_out" not in loader and "began" not in loader


def _asked(args: Any) -> dict[str, int]:
    return {"batch": args.per_device_train_batch_size, "accumulation": args.gradient_accumulation_steps}


def _ahead_in_stream(stored: dict[str, Any], done: int) -> int:
    """Return `ElasticResumption.steps_ahead` for the current pass over a stream; 0 at its end."""
    return 0 if stored["done"] >= stored["windows"] else stored["ahead"] + done - stored["done"]


def _unit(layout: dict[str, int]) -> int:
    """Return the samples of a batch; 1 for batches of a number of tokens, which are counted themselves."""
    return 1 if "tokens" in layout else layout["batch_size"]


def _samples(layout: dict[str, int]) -> int:
    """Return the samples, or batches of a number of tokens, of all processes in one step."""
    return layout["world_size"] * _unit(layout) * layout["accumulation"]
