"""Models and checkpoints, to the disk."""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ...callbacks import reads_checkpoints
from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import (
    PREFIX_CHECKPOINT_DIR,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
    WriteLater,
    WriteNow,
)
from ...lightning_modules.common.local_paths import require_local
from ...lightning_modules.common.redaction import secret
from ...lightning_modules.models import inspection
from ..distributed.collectives import from_first_process
from .restoring import Restoring, is_own

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

logger = logging.getLogger(__name__)

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Saving(Restoring):
    """From memory to folders."""

    background_checkpoints: int | None = 16 * 2**20
    """From this many bytes on, periodic checkpoints are copied in memory and written while the training goes on.

    Smaller ones are written at once, as that takes no time to speak of; all are with None. An override of
    `save_model`, or a callback that looks at the files, always finds them written.
    """

    _staging: str | None = None  # the folder of the checkpoint that is being written

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `transformers.Trainer.save_model`: the model, what processes its data, and the arguments.

        Args:
            output_dir: the folder, by default that of the arguments. Written by the main process only.

        Raises:
            ValueError: It is no folder, but an address such as `s3://bucket/folder`.
        """
        folder = str(self.args.output_dir) if output_dir is None else output_dir
        require_local(folder, "output_dir")
        strategy, saves = self._strategy, self.args.should_save
        if strategy.saves_parts(checkpoint=_internal_call and folder == self._staging):
            if saves:
                self._save(folder, state_dict={})
            follow = _internal_call and self._saves_training_state()
            strategy.save_weights(folder, step=self.state.global_step, states_follow=follow)
        else:
            weights = strategy.whole_weights(self.model, keep=saves)
            if weights is None:
                weights = self._lightning_callback_states.weights(self._run)
            if saves:
                self._save(folder) if weights is None else self._save(folder, state_dict=weights)
        if not _internal_call and self.args.push_to_hub:
            try:
                self.push_to_hub(commit_message="Model saved", revision=self.args.hub_revision)
            except Exception:
                logger.error("The model is saved; only its upload to the Hub failed.")
                raise

    def init_hf_repo(self, token: str | None = None) -> None:
        """As `transformers.Trainer.init_hf_repo`: make the repository, and its branch, if they are not there.

        Args:
            token: by default `hub_token`, or else the one that this machine knows.

        Raises:
            OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
            HfHubHTTPError: the Hub refused, or could not be reached; the message says what to do.
            HFValidationError: a ValueError; there can be no repository of that name.
        """
        token = secret(token)
        self._hub.create_repository(token)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """As `transformers.Trainer.create_model_card`, but with a picture of the losses and more tables.

        `README.md` and `loss_curve.png` go into `output_dir`, in the place of older ones, whose tags are kept. Works
        offline too. What is not given is found out where it can be.

        Args:
            language: of the data, such as `en`.
            license: by default that of the base model, if the Hub can be asked.
            tags: for the Hub's filters.
            model_name: by default the name of `output_dir`.
            finetuned_from: the base model on the Hub.
            tasks: identifiers of tasks on the Hub, by default from the name of the model's class.
            dataset_tags: identifiers of datasets on the Hub.
            dataset: their names for people.
            dataset_args: how each was read.
        """
        if self.is_world_process_zero():
            self._hub.write_card(
                language=language,
                license=license,
                tags=tags,
                model_name=model_name,
                finetuned_from=finetuned_from,
                tasks=tasks,
                dataset_tags=dataset_tags,
                dataset=dataset,
                dataset_args=dataset_args,
            )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> CommitInfo | Future[CommitInfo] | None:
        """As `transformers.Trainer.push_to_hub`: save the model, write its card, and upload `output_dir`.

        Checkpoints in it are left out, as is what begins with an underscore. To be called by all processes where the
        model is spread over them.

        Args:
            commit_message: of the commit.
            blocking: return only when all is uploaded.
            token: in the place of `hub_token`.
            revision: the branch, in the place of `hub_revision`.
            kwargs: for `create_model_card`.

        Returns:
            what became of it, or with `blocking=False` a future of that; None on processes other than the first.

        Raises:
            HfHubHTTPError: the Hub refused, or could not be reached; `output_dir` holds the model all the same.
        """
        token = secret(token)
        self.control = self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        self._finish_current_push()  # it may read the files that are about to be written
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**self._hub.card_arguments(**kwargs))
        message = commit_message or "Upload of a model"
        return self._hub.upload(message, blocking=blocking, token=token, revision=revision)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Begin to upload the model of a complete checkpoint, unless another upload is still on its way."""
        if self.is_world_process_zero():
            self._hub.push_checkpoint(checkpoint_folder, own_card=is_own(self, "create_model_card", Saving))

    def _finish_current_push(self) -> None:
        """Wait for the uploads that are on their way, however they end."""
        self._hub.wait()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = str(self.args.output_dir) if output_dir is None else output_dir
        os.makedirs(folder, exist_ok=True)
        logger.info("Saving the model to %s", folder)
        model = inspection.unwrap_model(self.model)
        if state_dict is None or state_dict:
            self._writer.weights(model, folder, state_dict=state_dict)
        elif hasattr(getattr(model, "config", None), "save_pretrained"):  # the weights are written in another form
            model.config.save_pretrained(folder)
        processing = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(folder)
        checkpoints.save_torch(_without_tokens(self.args), os.path.join(folder, TRAINING_ARGS_NAME))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write `checkpoint-{step}`: beside its name, so that nobody ever sees half of one, then rename it.

        Raises:
            DiskFullError: there is not enough space for it; nothing has been written.
        """
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        self._finish_writing()
        run_dir = self._get_output_dir(trial)
        final = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with self._lightning_callback_states.told(self._run), self._staged(final, run_dir) as (folder, together):
            with together.part():
                self.save_model(str(folder), _internal_call=True)
            self._note_best_checkpoint(run_dir, final)
            if self._saves_training_state():
                for save in self._parts_of_training_state():
                    with together.part():
                        save(str(folder))
                with together.part():
                    if self.args.should_save:
                        self._lightning_callback_states.save(str(folder), self._writer)
            if self.args.should_save:
                self.state.stateful_callbacks = self._callback_states.exported()
                with together.part():
                    self.state.save_to_json(folder / TRAINER_STATE_NAME)
                    self._callback_states.save(str(folder), self._writer)
        if self.args.push_to_hub:
            self._checkpoint_to_push = str(final)
            self._push_what_is_written()

    def _push_what_is_written(self) -> None:
        """Begin to upload the newest checkpoint once all of it is there; called often, and quick."""
        checkpoint = self._checkpoint_to_push
        if checkpoint is None or self._background.is_busy:
            return
        self._checkpoint_to_push = None
        if os.path.isdir(checkpoint):
            self._push_from_checkpoint(checkpoint)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        checkpoint = output_dir == self._staging
        self._training_state.save_optimizer_and_schedule(output_dir, self._writer, checkpoint=checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._training_state.load_optimizer_and_schedule(checkpoint)

    def _save_scaler(self, output_dir: str) -> None:
        self._training_state.save_scaler(output_dir)

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._training_state.load_scaler(checkpoint)

    @contextlib.contextmanager
    def _staged(self, final: Path, run_dir: str) -> Iterator[tuple[Path, checkpoints.DiskErrorConsensus]]:
        """The folder in the making, shared by all processes; the one that saves begins and commits it."""
        owner = from_first_process(checkpoints.owner_token(), self.args.world_size)
        folder, together = (
            checkpoints.staging_path(final, owner),
            checkpoints.DiskErrorConsensus(final, self.args.world_size),
        )
        undo, disk = partial(checkpoints.abort, folder), checkpoints.OtherDisk(folder, asked=False)
        try:
            with together.part():
                self._begin(final, run_dir, owner)
            together.agree()
            with together.part():
                disk = self._other_disk(folder)
            if self.args.world_size > self.args.local_world_size:
                together.agree()
            self._writer = WriteLater(self._background) if self._may_write_later() else WriteNow()
            self._staging = str(folder)
            yield folder, together
            together.agree()
            with together.part():
                if self.args.should_save:
                    best = self.state.best_model_checkpoint
                    self._writer.finish(partial(self._commit, folder, final, run_dir, best), undo)
                disk.finish(final, self.args.save_total_limit)
            together.agree()
        except BaseException:
            if self.args.should_save:
                undo()
            disk.give_up()
            raise
        finally:
            self._writer, self._staging = WriteNow(), None

    def _other_disk(self, folder: Path) -> checkpoints.OtherDisk:
        """Of a machine that does not see what the process that saves writes, but has states of its own to write."""
        apart = self.args.world_size > self.args.local_world_size and self.args.local_process_index == 0
        return checkpoints.OtherDisk(folder, apart and not self.args.should_save and self._saves_training_state())

    def _begin(self, final: Path, run_dir: str, owner: str) -> None:
        """Make the folder, where there is room for it, if need be in the place of an older checkpoint."""
        if not self.args.should_save:
            return
        best = self.state.best_model_checkpoint
        limit = self.args.save_total_limit
        older = checkpoints.sort_checkpoints(run_dir, best_model_checkpoint=best)[:-1] if limit else []
        spare = [path for path in older if best is None or not os.path.exists(best) or not os.path.samefile(path, best)]
        for path in checkpoints.require_space(run_dir, self._bytes_to_save(), spare=spare):
            logger.info("Removing %s before the next checkpoint is written: the disk is nearly full", path)
            checkpoints.discard(path)
        try:
            checkpoints.begin(final, owner)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            raise type(error)(
                error.errno,
                f"{final.name} cannot be written ({error.strerror}); the older checkpoints are untouched. Make the "
                "folder writable, and go on with resume_from_checkpoint=True",
                run_dir,
            ) from error

    def _require_place(self) -> None:
        """Say at once that checkpoints could not be written, and not when the first one is due."""
        if not self.args.should_save or self.args.save_strategy == "no":
            return
        place = Path(str(self.args.output_dir)).absolute()
        while not place.exists():
            place = place.parent
        what = f"output_dir={str(self.args.output_dir)!r} cannot hold checkpoints: {place}"
        if not place.is_dir():
            raise NotADirectoryError(f"{what} is a file. Pass another output_dir, or set save_strategy='no'.")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(
                f"{what} is not writable for this process. Make it so, pass another output_dir, or set "
                "save_strategy='no'."
            )

    def _saves_training_state(self) -> bool:
        """Whether a checkpoint is to hold more than the model."""
        return not self.args.save_only_model or self._signals.is_interrupted

    def _bytes_to_save(self) -> int:
        optimizer = [] if not self._saves_training_state() else list(getattr(self.optimizer, "state", {}).values())
        further = [self._callback_states.tensors(), self._lightning_callback_states.checkpoint]
        return self._strategy.bytes_to_save(optimizer, further, processes=self.args.world_size)

    def _commit(self, folder: Path, final: Path, run_dir: str, best: str | None) -> None:
        checkpoints.write_manifest(folder)
        checkpoints.commit(folder, final, keep_guests=True)
        limit = self.args.save_total_limit
        checkpoints.rotate_checkpoints(run_dir, limit, best_model_checkpoint=best, newest=final)

    def _may_write_later(self) -> bool:
        """Whether nobody can tell that the files come a little later: no override, and no callback that reads them."""
        least = self.background_checkpoints
        if least is None or self._run is None or self._strategy.all_write or self._bytes_to_save() < least:
            return False
        own = all(is_own(self, name, Saving) for name in ("save_model", "_save", "_save_checkpoint"))
        return own and not any(reads_checkpoints(callback) for callback in self.callback_handler.callbacks)

    def _parts_of_training_state(self) -> list[Callable[[str], None]]:
        parts = [self._save_optimizer_and_scheduler, self._save_scaler, self._save_rng_state]
        if self._run is not None:
            parts.append(partial(self._data_position.save, run=self._run, loaders=self._eval_dataloaders))
        return parts

    def _save_rng_state(self, output_dir: str) -> None:
        """Write the random generators of this process."""
        self._data_position.save_rng(output_dir, self._run)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Have the random generators as they were when a checkpoint was written."""
        if checkpoint is not None:
            self._data_position.load_rng(checkpoint)

    def _save_or_warn(self, model: nn.Module, trial: Any) -> None:
        """Write a periodic checkpoint; a full disk ends in a warning, and the training goes on."""
        try:
            self._save_checkpoint(model, trial)
        except OSError as error:
            checkpoints.warn_if_disk_full(error, self._get_output_dir(trial))
            self.control.should_save = False
        else:
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_at_once(self) -> None:
        """Write a checkpoint in the middle of something else, to the disk; a full one ends in a warning."""
        self._token_counter.flush()
        try:
            self._save_checkpoint(self.model, self._trial)
        except OSError as error:
            checkpoints.warn_if_disk_full(error, self._get_output_dir(self._trial))
        self._finish_writing()

    def _end_writing(self) -> None:
        """Let nothing be on its way when `train` is left, be it by an exception, which goes first."""
        try:
            self._background.wait()
        except Exception as error:
            logger.warning("The last checkpoint could not be written: %s", error)
        self._background.snapshot.release()

    def _finish_writing(self) -> None:
        """Wait for the checkpoint that is on its way, on all processes; only a full disk is forgiven."""
        try:
            self._background.wait()
        except Exception as error:
            checkpoints.warn_if_disk_full(error, str(self.args.output_dir))
        self.accelerator.wait_for_everyone()
        self._keep_the_best_there_is()
        self._push_what_is_written()


def _without_tokens(args: Any) -> Any:
    """A copy of the arguments that holds no token: what is saved is passed on."""
    copied = copy.copy(args)
    for name in vars(copied):
        if name.endswith("_token"):
            setattr(copied, name, None)
    return copied
