"""`save_model`, checkpoints and the Hub: the methods of the Trainer by which it saves and loads."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from ...lightning_modules.checkpoints import warn_if_disk_full
from ...lightning_modules.common.file_names import PREFIX_CHECKPOINT_DIR
from ...lightning_modules.common.local_paths import require_local
from ...lightning_modules.common.redaction import secret
from .base import is_own
from .reporting import TrainerLogging

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

logger = logging.getLogger(__name__)


class TrainerSaving(TrainerLogging):
    """From memory to folders and to the Hub, and back."""

    background_checkpoints: int | None = 16 * 2**20
    """From this many bytes on, periodic checkpoints are copied in memory and written while the training goes on.

    Smaller ones are written at once, as that takes no time to speak of; all are with None. An override of
    `save_model`, or a callback that looks at the files, always finds them written.
    """

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `transformers.Trainer.save_model`: the model, what processes its data, and the arguments.

        Args:
            output_dir: the folder, by default that of the arguments. Written by the main process only.

        Raises:
            ValueError: It is no folder, but an address such as `s3://bucket/folder`.
        """
        folder = str(self.args.output_dir) if output_dir is None else output_dir
        require_local(folder, "output_dir")
        self._checkpoints.save_model(folder, internal=_internal_call, run=self._run)
        if not _internal_call and self.args.push_to_hub:
            try:
                self.push_to_hub(commit_message="Model saved", revision=self.args.hub_revision)
            except Exception:
                logger.error("The model is saved; only its upload to the Hub failed.")
                raise

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As `transformers.Trainer.init_hf_repo`: make the repository, and its branch, if they are not there.

        Args:
            token: by default `hub_token`, or else the one that this machine knows.
            private: of a new repository, by default `hub_private_repo`.

        Raises:
            OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
            HfHubHTTPError: the Hub refused, or could not be reached; the message says what to do.
            HFValidationError: a ValueError; there can be no repository of that name.
        """
        token = secret(token)
        self._hub.create_repository(token, private)

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

        `README.md` and `loss_curve.svg` go into `output_dir`, in the place of older ones, whose tags are kept. Works
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
        private: bool | None = None,
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
            private: of a repository that is made now, in the place of `hub_private_repo`.
            kwargs: for `create_model_card`.

        Returns:
            what became of it, or with `blocking=False` a future of that; None on processes other than the first.

        Raises:
            HfHubHTTPError: the Hub refused, or could not be reached; `output_dir` holds the model all the same.
        """
        token = secret(token)
        self.control = self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            # Overrides of libraries take the token only.
            self.init_hf_repo(token=token, **({} if private is None else {"private": private}))
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
            self._hub.push_checkpoint(checkpoint_folder, own_card=is_own(self, "create_model_card"))

    def _finish_current_push(self) -> None:
        """Wait for the uploads that are on their way, however they end."""
        self._hub.wait()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write the model, or other weights in its place, into a folder; called in the process that saves."""
        self._checkpoints.write_model(str(self.args.output_dir) if output_dir is None else output_dir, state_dict)

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder in which checkpoints are; a trial has one of its own."""
        return self._search.output_dir(str(self.args.output_dir), trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write `checkpoint-{step}`: beside its name, so that nobody ever sees half of one, then rename it.

        Raises:
            DiskFullError: there is not enough space for it; nothing has been written.
        """
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        parts: list[Callable[[str], None]] = [
            self._save_optimizer_and_scheduler,
            self._save_scaler,
            self._save_rng_state,
        ]
        if self._run is not None:
            parts.append(partial(self._data_position.save, run=self._run, loaders=self._eval_dataloaders))
        overridden = not all(is_own(self, name) for name in ("save_model", "_save", "_save_checkpoint"))
        folder = self._get_output_dir(trial)
        self._checkpoints.save(folder, parts, run=self._run, at_once=overridden)
        self._signals.newest_checkpoint = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")

    def _save_or_warn(self, model: nn.Module, trial: Any) -> bool:
        """Write a checkpoint, and say whether it is written; a full disk ends in a warning."""
        try:
            self._save_checkpoint(model, trial)
        except OSError as error:
            warn_if_disk_full(error, self._get_output_dir(trial))
            return False
        return True

    def _save_at_once(self) -> None:
        """Write a checkpoint in the middle of something else, and wait until it is on the disk."""
        self._token_counter.flush()
        self._save_or_warn(self.model, self._trial)
        self._checkpoints.finish_writing()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write both; all processes have to call it."""
        saver = self._checkpoints
        in_checkpoint = saver.is_checkpoint(output_dir)
        self._training_state.save_optimizer_and_schedule(output_dir, saver.writer, checkpoint=in_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Let both go on from a checkpoint."""
        if checkpoint is not None:
            self._training_state.load_optimizer_and_schedule(checkpoint)

    def _save_scaler(self, output_dir: str) -> None:
        """Write the loss scale of fp16."""
        self._training_state.save_scaler(output_dir)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Let the loss scale go on from a checkpoint."""
        if checkpoint is not None:
            self._training_state.load_scaler(checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        """Write the random generators of this process."""
        self._data_position.save_rng(output_dir, self._run)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Have the random generators as they were when a checkpoint was written."""
        if checkpoint is not None:
            self._data_position.load_rng(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Fill the model, or another one, with the weights of a checkpoint."""
        self._strategy.load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Fill the model with the weights of the best checkpoint."""
        self._restorer.load_best()

    def _load_callback_state(self) -> None:
        """Let callbacks go on from the state that was read from a checkpoint, where the arguments ask for that."""
        if self.args.restore_callback_states_from_checkpoint:
            self._callback_states.restore_exported()
