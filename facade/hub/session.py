"""Manage the uploads and the model card of a Trainer."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

from ...lightning_modules.checkpoints import CheckpointNotFoundError
from ...lightning_modules.common.redaction import secret
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.signatures import accepted_arguments
from ...lightning_modules.models.wrappers import unwrap_model
from ..arguments.enums import HubStrategy, SaveStrategy
from ..distributed.collectives import broadcast_from_rank_zero
from .facts import CardOptions, as_list, facts_of
from .model_card import MARKER, ModelCard
from .pushing import (
    LAST_CHECKPOINT,
    NOT_UPLOADED,
    CheckpointUpload,
    Pusher,
    PushInProgress,
    StagingFolder,
    needs_draft,
)
from .repository import Repository, replacement_of

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

    from .. import Trainer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_CHECKPOINT_NAME = re.compile(rf"{LAST_CHECKPOINT}|checkpoint-\d+")


class RemoteCheckpoint(NamedTuple):
    """Location of a checkpoint on the Hub."""

    repository: str
    """The full name of the repository."""
    commit: str


class HubSession:
    """Connects a Trainer to the Hugging Face Hub. Only rank 0 uploads.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.pusher = Pusher()
        self._skipped_checkpoint: str | None = None
        """The checkpoint to upload at the end of the training, unless a newer one is uploaded: one
        that was skipped because another upload was running, or that the training resumes from.
        """

    # Repository.

    @property
    def output_name(self) -> str:
        """Return the name of the folder `output_dir`, the default name of the repository."""
        output_dir = os.path.abspath(self._output_dir)
        return os.path.basename(output_dir)

    def repository(
        self, name: str | None = None, *, token: str | None = None, revision: str | None = None
    ) -> Repository:
        """Return the repository of the arguments, with overrides."""
        args = self.trainer.args
        full_name: str = name or self.trainer.hub_model_id or args.hub_model_id or self.output_name
        return Repository(full_name, secret(token or args.hub_token), revision or args.hub_revision)

    def create_repository(self, token: str | None, private: bool | None = None) -> None:
        """Create the repository; see `Trainer.init_hf_repo`."""
        if not self.trainer.is_world_process_zero():
            return

        args = self.trainer.args
        name = args.hub_model_id
        source = "hub_model_id"
        if not name:
            name = self.output_name
            source = "output_dir"
        logger.info("Uploading to the repository %r, as named by %s", name, source)

        if private is None:
            private = args.hub_private_repo
        repository = self.repository(name, token=token).create(private=private)
        self.trainer.hub_model_id = repository.name

    @property
    def _output_dir(self) -> str:
        return str(self.trainer.args.output_dir)

    # Model card.

    def write_card(self, **options: Unpack[CardOptions]) -> None:
        """Write the card, see `Trainer.create_model_card`."""
        facts = facts_of(self.trainer, **options)
        ModelCard(facts).write(Path(self._output_dir), self.repository().license_of)

        # PEFT adds its metadata to the card.
        adapter = unwrap_model(self.trainer.model)
        if facts.library == "peft" and hasattr(adapter, "create_or_update_model_card"):
            adapter.create_or_update_model_card(self._output_dir)

    def card_arguments(self, **options: Unpack[CardOptions]) -> dict[str, str]:
        """Return keyword arguments for `create_model_card`.

        They are from the caller, the training arguments and the tags of the model.
        """
        name = self.trainer.args.hub_model_id or self.output_name
        arguments: dict[str, Any] = {"model_name": name.split("/")[-1]}
        for key, value in options.items():
            if value is not None:
                arguments[key] = value

        model = unwrap_model(self.trainer.model)
        model_tags = as_list(getattr(model, "model_tags", None))
        if model_tags:
            tags = [*as_list(options.get("tags")), *model_tags]
            arguments["tags"] = list(dict.fromkeys(tags))
        return arguments

    def _draft_writer(self, *, has_default_card: bool) -> Callable[[Path], None] | None:
        """Return the function that writes the card of an upload into its folder.

        None if `output_dir` has a card: the user's, or one written by an override of
        `create_model_card`, which this method calls.
        """
        if not has_default_card:
            create_card = self.trainer.create_model_card
            create_card(**accepted_arguments(create_card, **self.card_arguments()))
            return None
        if not needs_draft(Path(self._output_dir), MARKER):
            return None

        facts = facts_of(self.trainer, **self.card_arguments())
        return partial(ModelCard(facts).write, find_license=self.repository().license_of)

    # Uploads.

    def upload(
        self, message: str, *, blocking: bool, token: str | None, revision: str | None
    ) -> CommitInfo | Future[CommitInfo]:
        """Upload `output_dir`, see `Trainer.push_to_hub`."""
        repository = self.repository(token=token, revision=revision)
        step = self.trainer.state.global_step
        # If a test has replaced the upload, there is no Hub to request the branches from.
        if replacement_of("upload_folder") is None:
            repository.require_branch()

        upload = partial(repository.upload, Path(self._output_dir), message, ignore=NOT_UPLOADED)
        if not blocking:
            return self._submit(upload, step, "The model", repository)
        commit = upload()
        self.pusher.record_success(step)
        return commit

    def push_checkpoint(self, checkpoint: str, *, has_default_card: bool) -> None:
        """Start the upload of a complete checkpoint, unless another one is pending.

        Args:
            checkpoint: the folder of the checkpoint.
            has_default_card: False if `create_model_card` is overridden.
        """
        trainer = self.trainer
        if trainer.args.hub_strategy == HubStrategy.END:
            return
        # An upload may take longer than the steps between two checkpoints.
        if self._is_busy and not trainer.args.hub_always_push:
            logger.info("Skipped the upload of %s: the previous one is still running.", checkpoint)
            self._skipped_checkpoint = checkpoint
            return

        self._skipped_checkpoint = None
        trainer.control = trainer.callback_handler.on_push_begin(
            trainer.args, trainer.state, trainer.control
        )
        step = _step_of(checkpoint, default=trainer.state.global_step)
        try:
            upload = self._prepare_upload(Path(checkpoint), step, has_default_card)
        except Exception as error:
            # A failed upload must not stop the training.
            self.pusher.record_failure(error, checkpoint, self.repository())
            return

        def remove_cancelled(future: Future[None]) -> None:
            if future.cancelled():
                upload.staging.remove()

        # Remove the files of a cancelled upload; one that has started removes its files itself.
        future = self._submit(upload, step, checkpoint, upload.repository)
        future.add_done_callback(remove_cancelled)

    def wait(self) -> None:
        """Wait for pending uploads. Failures are not raised."""
        if self.trainer.push_in_progress is not None and self._is_busy:
            logger.info("Waiting for the running upload to the Hub.")
            self.trainer.push_in_progress.wait_until_done()

    @property
    def _is_busy(self) -> bool:
        uploads = self.trainer.push_in_progress
        return uploads is not None and not uploads.is_done()

    def _prepare_upload(
        self, checkpoint: Path, step: int, has_default_card: bool
    ) -> CheckpointUpload:
        """Link the files of a checkpoint, and return its upload."""
        if self.trainer.hub_model_id is None:
            self.trainer.init_hf_repo()

        # An override of `create_model_card` writes its card before the files are collected.
        write_card = self._draft_writer(has_default_card=has_default_card)
        path_in_repo = None
        strategy = HubStrategy(self.trainer.args.hub_strategy)
        if strategy is HubStrategy.CHECKPOINT:
            path_in_repo = LAST_CHECKPOINT
        elif strategy is HubStrategy.ALL_CHECKPOINTS:
            path_in_repo = checkpoint.name
        progress = f"step {step}"
        if self.trainer.args.save_strategy != SaveStrategy.STEPS:
            progress = f"epoch {int(self.trainer.state.epoch or 0)}"
        return CheckpointUpload(
            repository=self.repository(),
            staging=StagingFolder(checkpoint, Path(self._output_dir)),
            message=f"Training in progress, {progress}",
            path_in_repo=path_in_repo,
            write_card=write_card,
        )

    def _submit(
        self, upload: Callable[[], Result], step: int, label: str, repository: Repository
    ) -> Future[Result]:
        """Queue an upload, and add it to `trainer.push_in_progress`."""
        future = self.pusher.submit(upload, step=step, label=label, repository=repository)

        # When all uploads are done, start a new object, so that their results can be freed.
        if self.trainer.push_in_progress is None or self.trainer.push_in_progress.is_done():
            self.trainer.push_in_progress = PushInProgress()
        self.trainer.push_in_progress.jobs.append(future)
        return future

    # Training.

    def begin_training(self) -> None:
        """Reset the state of uploads, and create the repository if missing."""
        trainer = self.trainer
        self._skipped_checkpoint = None
        # The Hub has no model of this training yet.
        self.pusher.newest_step = None

        if trainer.args.push_to_hub and trainer.hub_model_id is None:
            trainer.init_hf_repo()

    def resume_from(self, checkpoint: str | None) -> None:
        """Note the checkpoint of a resumed training, whose upload may have been killed.

        Args:
            checkpoint: the folder to resume from, if any.
        """
        uploads_checkpoints = (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)
        if checkpoint is None or self.trainer.args.hub_strategy not in uploads_checkpoints:
            return
        if os.path.realpath(os.path.dirname(checkpoint)) == os.path.realpath(self._output_dir):
            self._skipped_checkpoint = checkpoint

    def end_training(
        self,
        *,
        uploads_model: bool,
        push_checkpoint: Callable[[str], None],
        finish_push: Callable[[], None],
    ) -> None:
        """Finish the uploads, and report failures.

        After an upload that could not reach the Hub, no other upload is attempted.

        Args:
            uploads_model: True to upload the final model if the Hub has another model.
            push_checkpoint: `Trainer._push_from_checkpoint`, which may be overridden.
            finish_push: `Trainer._finish_current_push`, which may be overridden.
        """
        trainer = self.trainer
        if not trainer.args.push_to_hub:
            return

        # Finish the upload that is running.
        was_busy = self._is_busy
        finish_push()
        is_unreachable = was_busy and self.pusher.is_unreachable

        # Upload the checkpoint that the Hub may lack, unless `save_total_limit` deleted it.
        skipped = self._skipped_checkpoint
        if not is_unreachable and skipped is not None and os.path.isdir(skipped):
            push_checkpoint(skipped)
            finish_push()
            is_unreachable = self.pusher.is_unreachable

        # Upload the final model.
        is_due = uploads_model and trainer.args.hub_strategy != HubStrategy.END
        if is_due and self._is_outdated(is_unreachable=is_unreachable):
            try:
                trainer.push_to_hub()
            except Exception as error:
                # A finished training must not fail because of the network.
                self.pusher.record_failure(error, "The final model", self.repository())
        self.pusher.report(self.repository(), self._output_dir)

    def _is_outdated(self, *, is_unreachable: bool) -> bool:
        """Return whether the Hub has another model than the final one, and can be reached.

        All processes return the result of process 0.

        Args:
            is_unreachable: whether the last upload of this process did not reach the Hub.
        """
        args = self.trainer.args
        state = self.trainer.state
        step = state.global_step
        # With `load_best_model_at_end`, the final model is that of the best checkpoint.
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            step = _step_of(state.best_model_checkpoint, default=-1)
        is_outdated = self.pusher.newest_step != step and not is_unreachable
        return broadcast_from_rank_zero(is_outdated, args.world_size)

    # Resuming.

    def find_checkpoint(self, name: str) -> str | None:
        """Return the folder of a checkpoint in `output_dir` or in the repository.

        None if the name is not a checkpoint's, or no repository is set.

        Raises:
            CheckpointNotFoundError: the checkpoint is in neither of them.
        """
        args = self.trainer.args
        if not _CHECKPOINT_NAME.fullmatch(name) or not (args.hub_model_id or args.push_to_hub):
            return None

        # Rank 0 chooses the commit for all ranks, because an upload may add a newer one.
        location: str | RemoteCheckpoint | None = None
        failure = None
        if self.trainer.is_world_process_zero():
            try:
                location = self._locate(name)
            except Exception as error:
                failure = error

        # Raise only after the broadcast, because the other processes wait in it.
        location = broadcast_from_rank_zero(location, args.world_size)
        if failure is not None:
            raise failure
        if isinstance(location, RemoteCheckpoint):
            return self._download(name, location)
        return location

    def _locate(self, name: str) -> str | RemoteCheckpoint:
        """Return the folder in `output_dir`, or else the repository and its newest commit."""
        # `output_dir` may have the checkpoint, for example as a clone of the repository.
        local_folder = os.path.join(self._output_dir, name)
        if os.path.isdir(local_folder):
            return local_folder
        repository = self.repository()
        return RemoteCheckpoint(repository.name, repository.newest_commit())

    def _download(self, name: str, location: RemoteCheckpoint) -> str:
        """Download a checkpoint, and return its folder."""
        logger.info(
            "Downloading %s from the repository %s, commit %s",
            name,
            location.repository,
            location.commit,
        )
        folder = self.repository(location.repository).download(name, location.commit)
        if not folder.is_dir():
            raise CheckpointNotFoundError(
                f"Can't find a valid checkpoint {name!r}: it is neither in the working folder, nor "
                f"in output_dir, nor in the repository {location.repository!r}. Checkpoints are "
                "uploaded with hub_strategy='checkpoint' or 'all_checkpoints'."
            )
        return str(folder)


def _step_of(checkpoint: str, default: int) -> int:
    """Return the step in the name of a checkpoint, or the default."""
    number = Path(checkpoint).name.rpartition("-")[2]
    if number.isdigit():
        return int(number)
    return default
