"""Uploads of a Trainer: repository, schedule of checkpoints, model card, reporting."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules.checkpoints import CheckpointNotFoundError
from ...lightning_modules.common.redaction import secret
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models import inspection
from ..arguments.enums import HubStrategy
from ..distributed.collectives import broadcast_from_rank_zero
from .facts import as_list, facts_of, size_of
from .model_card import MARKER, ModelCard
from .pushing import (
    LAST_CHECKPOINT,
    NOT_UPLOADED,
    CheckpointPush,
    Pusher,
    PushInProgress,
    Stage,
    draft_is_wanted,
)
from .repository import Repository, quiet, replaced

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

    from .. import Trainer

logger = logging.getLogger(__name__)

_CHECKPOINT = re.compile(rf"{LAST_CHECKPOINT}|checkpoint-\d+")


class HubSession:
    """Connect a Trainer to the Hugging Face Hub; only process 0 uploads.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.pusher = Pusher()
        self._skipped: str | None = None  # newest checkpoint skipped during another upload
        # weak reference to the model, its size
        self._counted: tuple[Any, tuple[int, int]] = (lambda: None, (0, 0))

    # --- the repository

    @property
    def output_name(self) -> str:
        """Return the name of the folder `output_dir`, the default name of the repository."""
        return os.path.basename(os.path.abspath(str(self.trainer.args.output_dir)))

    def repository(
        self, name: str | None = None, *, token: str | None = None, revision: str | None = None
    ) -> Repository:
        """Return the repository of the arguments, with overrides."""
        args = self.trainer.args
        full: str = name or self.trainer.hub_model_id or args.hub_model_id or self.output_name
        return Repository(full, secret(token or args.hub_token), revision or args.hub_revision)

    def create_repository(self, token: str | None, private: bool | None = None) -> None:
        """Create the repository; see `Trainer.init_hf_repo`."""
        if not self.trainer.is_world_process_zero():
            return
        args = self.trainer.args
        name = args.hub_model_id or self.output_name
        logger.info(
            "Uploads go to %r, named by %s",
            name,
            "hub_model_id" if args.hub_model_id else "output_dir",
        )
        if private is None:
            private = args.hub_private_repo
        self.trainer.hub_model_id = self.repository(name, token=token).created(private=private).name

    # --- the card

    def write_card(self, **given: Any) -> None:
        """Write the card, see `Trainer.create_model_card`."""
        facts = facts_of(self.trainer, self._model_size(), **given)
        folder = Path(str(self.trainer.args.output_dir))
        ModelCard(facts).write(folder, self.repository().license_of)
        adapter = inspection.unwrap_model(self.trainer.model)
        if facts.library == "peft" and hasattr(adapter, "create_or_update_model_card"):
            adapter.create_or_update_model_card(str(folder))

    def card_arguments(self, **given: Any) -> dict[str, Any]:
        """Return keywords of `create_model_card` from the caller, the arguments and the model."""
        name = self.trainer.args.hub_model_id or self.output_name
        arguments: dict[str, Any] = {"model_name": name.split("/")[-1]}
        arguments |= {key: value for key, value in given.items() if value is not None}

        tags_of_model = as_list(
            getattr(inspection.unwrap_model(self.trainer.model), "model_tags", None)
        )
        if tags_of_model:
            arguments["tags"] = list(dict.fromkeys([*as_list(given.get("tags")), *tags_of_model]))
        return arguments

    def _draft(self, own_card: bool) -> Callable[[Path], None] | None:
        """Return the writer of the card of an upload, or None; an override of
        `create_model_card` is called now.
        """
        if not own_card:
            write = self.trainer.create_model_card
            write(**inspection.accepted_arguments(write, **self.card_arguments()))
            return None
        if not draft_is_wanted(Path(str(self.trainer.args.output_dir)), MARKER):
            return None
        card = ModelCard(facts_of(self.trainer, self._model_size(), **self.card_arguments()))
        return partial(card.write, find_license=self.repository().license_of)

    def _model_size(self) -> tuple[int, int]:
        model, size = self._counted
        if model() is self.trainer.model:
            return size
        return size_of(self.trainer.model)

    # --- uploads

    def upload(
        self, message: str, *, blocking: bool, token: str | None, revision: str | None
    ) -> CommitInfo | Future[CommitInfo]:
        """Upload `output_dir`, see `Trainer.push_to_hub`."""
        repository = self.repository(token=token, revision=revision)
        step = self.trainer.state.global_step
        if replaced("upload_folder") is None:
            repository.require_branch()
        upload = partial(
            repository.upload, Path(str(self.trainer.args.output_dir)), message, ignore=NOT_UPLOADED
        )
        if not blocking:
            return self._submit(upload, step, "The model", repository)

        commit = upload()
        self.pusher.succeeded(step)
        return commit

    def push_checkpoint(self, checkpoint: str, *, own_card: bool) -> None:
        """Start the upload of a complete checkpoint, unless another one is pending.

        Args:
            checkpoint: the folder.
            own_card: `create_model_card` is not overridden.
        """
        trainer = self.trainer
        if trainer.args.hub_strategy == HubStrategy.END:
            return
        if self._is_busy and not trainer.args.hub_always_push:
            logger.info("%s is skipped: the previous upload is still running.", checkpoint)
            self._skipped = checkpoint
            return
        self._skipped = None
        trainer.control = trainer.callback_handler.on_push_begin(
            trainer.args, trainer.state, trainer.control
        )
        step = _step_of(checkpoint, trainer.state.global_step)
        try:
            push = self._prepared_push(Path(checkpoint), step, own_card)
        except Exception as error:  # the training matters more
            self.pusher.failed(error, checkpoint, self.repository())
            return
        future = self._submit(push, step, checkpoint, push.repository)
        future.add_done_callback(lambda done: push.stage.remove() if done.cancelled() else None)

    def wait(self) -> None:
        """Wait for pending uploads, failed ones too."""
        if self.trainer.push_in_progress is not None and self._is_busy:
            logger.info("Waiting for the upload to the Hub that is still running.")
            self.trainer.push_in_progress.wait_until_done()

    @property
    def _is_busy(self) -> bool:
        return (
            self.trainer.push_in_progress is not None
            and not self.trainer.push_in_progress.is_done()
        )

    def _prepared_push(self, checkpoint: Path, step: int, own_card: bool) -> CheckpointPush:
        if self.trainer.hub_model_id is None:
            self.trainer.init_hf_repo()
        folders = {
            HubStrategy.CHECKPOINT: LAST_CHECKPOINT,
            HubStrategy.ALL_CHECKPOINTS: checkpoint.name,
        }
        write_card = self._draft(own_card)
        return CheckpointPush(
            repository=self.repository(),
            stage=Stage(checkpoint, Path(str(self.trainer.args.output_dir))),
            message=f"Training in progress: step {step}",
            subfolder=folders.get(HubStrategy(self.trainer.args.hub_strategy)),
            write_card=write_card,
        )

    def _submit(self, job: Callable[[], Any], step: int, what: str, to: Repository) -> Future[Any]:
        future = self.pusher.submit(job, step=step, what=what, to=to)
        if self.trainer.push_in_progress is None or self.trainer.push_in_progress.is_done():
            self.trainer.push_in_progress = PushInProgress()
        self.trainer.push_in_progress.jobs.append(future)
        return future

    # --- a training

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without progress bars of uploads, which would mix with those of the
        training.
        """
        return quiet() if self.trainer.args.push_to_hub else contextlib.nullcontext()

    def begin_training(self) -> None:
        """Reset the state of uploads, and create the repository if missing."""
        self._skipped = None
        self.pusher.newest_step = None  # of another training
        # before the model is sharded
        self._counted = (weakref.ref(self.trainer.model), size_of(self.trainer.model))
        if self.trainer.args.push_to_hub and self.trainer.hub_model_id is None:
            self.trainer.init_hf_repo()

    def end_training(self, *, last_push: bool) -> None:
        """Finish the uploads, and report failures. Where the Hub cannot be reached, one upload is
        tried, and no other after it.

        Args:
            last_push: upload the final model if the Hub has another one.
        """
        trainer = self.trainer
        if not trainer.args.push_to_hub:
            return
        was_pending = self._is_busy
        trainer._finish_current_push()
        gives_up = was_pending and self.pusher.is_unreachable
        if not gives_up and self._skipped is not None and os.path.isdir(self._skipped):
            trainer._push_from_checkpoint(self._skipped)
            trainer._finish_current_push()
            gives_up = self.pusher.is_unreachable
        is_wanted = last_push and trainer.args.hub_strategy != HubStrategy.END
        if is_wanted and self._is_behind(gives_up=gives_up):
            try:
                trainer.push_to_hub()
            except Exception as error:  # a finished training must not fail for lack of a network
                self.pusher.failed(error, "The final model", self.repository())
        self.pusher.report(self.repository(), str(trainer.args.output_dir))

    def _is_behind(self, *, gives_up: bool) -> bool:
        """Return whether the Hub has another model than this Trainer; broadcast from process 0.

        Args:
            gives_up: the Hub cannot be reached; of process 0.
        """
        state = self.trainer.state
        step = state.global_step
        if self.trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            step = _step_of(state.best_model_checkpoint, -1)
        return broadcast_from_rank_zero(
            self.pusher.newest_step != step and not gives_up, self.trainer.args.world_size
        )

    # --- checkpoints to go on from

    def find_checkpoint(self, name: str) -> str | None:
        """Return the folder of a checkpoint in `output_dir` or the repository; None for other
        names.

        Raises:
            CheckpointNotFoundError: it is in neither.
        """
        args = self.trainer.args
        if not _CHECKPOINT.fullmatch(name) or not (args.hub_model_id or args.push_to_hub):
            return None

        # All processes use the same commit, even if uploads continue.
        place: str | tuple[str, str] | None = None
        problem = None
        if self.trainer.is_world_process_zero():
            try:
                place = self._place_of(name)
            except Exception as error:
                problem = error
        place = broadcast_from_rank_zero(place, args.world_size)
        if problem is not None:
            raise problem
        if isinstance(place, tuple):
            return self._downloaded(name, *place)
        return place

    def _place_of(self, name: str) -> str | tuple[str, str]:
        """Return a folder of `output_dir`, which may be a clone, or else repository and commit."""
        cloned = os.path.join(str(self.trainer.args.output_dir), name)
        if os.path.isdir(cloned):
            return cloned
        repository = self.repository()
        return repository.name, repository.newest_commit()

    def _downloaded(self, name: str, repository: str, commit: str) -> str:
        logger.info("Downloading %s of the repository %s, commit %s", name, repository, commit)
        folder = self.repository(repository).download(name, commit)
        if not folder.is_dir():
            raise CheckpointNotFoundError(
                f"Can't find a valid checkpoint {name!r}, neither here, nor in output_dir, nor in "
                f"{repository!r}: hub_strategy='checkpoint' or 'all_checkpoints' uploads them."
            )
        return str(folder)


def _step_of(checkpoint: str, otherwise: int) -> int:
    number = Path(checkpoint).name.rpartition("-")[2]
    if number.isdigit():
        return int(number)
    return otherwise
