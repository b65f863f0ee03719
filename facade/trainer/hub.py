"""Models and checkpoints, to the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.redaction import secret
from ...lightning_modules.models import inspection
from ..arguments.enums import HubStrategy
from ..hub import ModelCard, PushInProgress, Repository
from ..hub.card_text import MARKER
from ..hub.facts import as_list, facts_of, size_of
from ..hub.pushing import CheckpointPush, draft_is_wanted
from ..hub.repository import quiet, replaced, require_online
from ..hub.staging import LAST_CHECKPOINT, NOT_UPLOADED, Stage
from .downloading import Downloading

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

logger = logging.getLogger(__name__)


class HubSide(Downloading):
    """From folders to the Hub; only the first process of all uploads."""

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
        named = self.args.hub_model_id
        name = named or self._output_name
        if replaced("create_repo") is None:
            require_online(f"create the repository {name!r} of push_to_hub")
        if not self.is_world_process_zero():
            return
        logger.info("Uploads go to %r, named by %s", name, "hub_model_id" if named else "the folder output_dir")
        self.hub_model_id = self._repository(name, token=token).created(private=self.args.hub_private_repo).name

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
        if not self.is_world_process_zero():
            return
        facts = facts_of(
            self,
            self._model_size(),
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
        folder = Path(str(self.args.output_dir))
        ModelCard(facts).write(folder, self._repository().license_of)
        adapter = inspection.unwrap_model(self.model)
        if facts.library == "peft" and hasattr(adapter, "create_or_update_model_card"):
            adapter.create_or_update_model_card(str(folder))

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
        self.create_model_card(**self._card_arguments(kwargs))
        repository = self._repository(token=token, revision=revision)
        if replaced("upload_folder") is None:
            repository.require_branch()
        folder = Path(str(self.args.output_dir))
        message = commit_message or "Upload of a model"
        upload = partial(repository.upload, folder, message, ignore=NOT_UPLOADED)
        if not blocking:
            return self._submit(upload, self.state.global_step, "The model", repository)
        done = upload()
        self._pusher.succeeded(self.state.global_step)
        return done

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Begin to upload the model of a complete checkpoint, unless another upload is still on its way."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            logger.info("%s is not uploaded: the upload before is still on its way.", checkpoint_folder)
            self._skipped_checkpoint = checkpoint_folder
            return
        self._skipped_checkpoint = None
        self.control = self.callback_handler.on_push_begin(self.args, self.state, self.control)
        step = _step_of(checkpoint_folder, self.state.global_step)
        try:
            push = self._prepared_push(Path(checkpoint_folder), step)
        except Exception as error:  # the training matters more
            self._pusher.failed(error, checkpoint_folder, self._repository())
            return
        future = self._submit(push, step, checkpoint_folder, push.repository)
        future.add_done_callback(lambda done: push.stage.remove() if done.cancelled() else None)

    def _prepared_push(self, checkpoint: Path, step: int) -> CheckpointPush:
        if self.hub_model_id is None:
            self.init_hf_repo()
        output_dir, strategy = Path(str(self.args.output_dir)), self.args.hub_strategy
        folders = {HubStrategy.CHECKPOINT: LAST_CHECKPOINT, HubStrategy.ALL_CHECKPOINTS: checkpoint.name}
        write_card = self._draft(output_dir)
        return CheckpointPush(
            repository=self._repository(),
            stage=Stage(checkpoint, output_dir),
            message=f"Training in progress: step {step}",
            subfolder=folders.get(HubStrategy(strategy)),
            write_card=write_card,
        )

    def _draft(self, output_dir: Path) -> Any:
        """Who writes the card of an upload; an override of `create_model_card` does so at once, and in its own way."""
        if getattr(self.create_model_card, "__func__", None) is not HubSide.create_model_card:
            arguments = inspection.accepted_arguments(self.create_model_card, **self._card_arguments({}))
            self.create_model_card(**arguments)
            return None
        if not draft_is_wanted(output_dir, MARKER):
            return None
        card = ModelCard(facts_of(self, self._model_size(), **self._card_arguments({})))
        return partial(card.write, find_license=self._repository().license_of)

    def _card_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """What is asked for, and what follows from the arguments and the model."""
        name = self.args.hub_model_id
        model_name = name.split("/")[-1] if name else self._output_name
        arguments = {"model_name": model_name, **{key: value for key, value in given.items() if value is not None}}
        own = as_list(getattr(inspection.unwrap_model(self.model), "model_tags", None))
        if own:
            arguments["tags"] = list(dict.fromkeys([*as_list(given.get("tags")), *own]))
        return arguments

    def _submit(self, job: Any, step: int, what: str, to: Repository) -> Future[Any]:
        future = self._pusher.submit(job, step=step, what=what, to=to)
        if self.push_in_progress is None or self.push_in_progress.is_done():
            self.push_in_progress = PushInProgress()
        self.push_in_progress.jobs.append(future)
        return future

    def _finish_current_push(self) -> None:
        """Wait for the uploads that are on their way, however they end."""
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            logger.info("Waiting for the upload to the Hub that is on its way.")
            self.push_in_progress.wait_until_done()

    def _set_up_hub(self) -> None:
        if self.args.push_to_hub:
            self.init_hf_repo()

    def _apply_hub(self) -> None:
        """See that there is a repository, also where `push_to_hub` was turned on later."""
        self._checkpoint_to_push = self._skipped_checkpoint = None
        self._pusher.newest_step = None  # of another training
        self._counted = (self.model, size_of(self.model))  # before it is spread over processes
        if self.args.push_to_hub and self.hub_model_id is None:
            self.init_hf_repo()

    @contextlib.contextmanager
    def _uploads_quiet(self) -> Iterator[None]:
        """No bars of uploads between those of the training."""
        with quiet() if self.args.push_to_hub else contextlib.nullcontext():
            yield

    def _checkpoint_saved(self, checkpoint: Path) -> None:
        if self.args.push_to_hub:
            self._checkpoint_to_push = str(checkpoint)
            self._push_what_is_written()

    def _writing_finished(self) -> None:
        self._push_what_is_written()

    def _push_what_is_written(self) -> None:
        """Begin to upload the newest checkpoint once all of it is there; called often, and quick."""
        checkpoint = self._checkpoint_to_push
        if checkpoint is None or self._background.is_busy:
            return
        self._checkpoint_to_push = None
        if os.path.isdir(checkpoint):
            self._push_from_checkpoint(checkpoint)

    def _model_saved(self) -> None:
        if not self.args.push_to_hub:
            return
        try:
            self.push_to_hub(commit_message="Model saved", revision=self.args.hub_revision)
        except Exception:
            logger.error("The model is saved; only its upload to the Hub failed.")
            raise

    def _finish_hub(self, *, last_push: bool) -> None:
        """Let the Hub have the model that the training ends with, and say what went wrong.

        Args:
            last_push: upload it now, if the Hub has another one.
        """
        if not self.args.push_to_hub:
            return
        self._finish_current_push()
        if self._skipped_checkpoint is not None and os.path.isdir(self._skipped_checkpoint):
            self._push_from_checkpoint(self._skipped_checkpoint)
            self._finish_current_push()
        if last_push and self.args.hub_strategy != HubStrategy.END and self._hub_is_behind():
            try:
                self.push_to_hub()
            except Exception as error:  # a training that is done is not lost for want of a network
                self._pusher.failed(error, "The final model", self._repository())
        self._pusher.report()

    def _hub_is_behind(self) -> bool:
        """Whether the Hub's model is not that of this Trainer; the first process knows, and tells the others."""
        state = self.state
        loaded = self.args.load_best_model_at_end and state.best_model_checkpoint is not None
        step = _step_of(str(state.best_model_checkpoint), -1) if loaded else state.global_step
        return self._from_main_process("yes" if self._pusher.newest_step != step else "") == "yes"

    _counted: tuple[Any, tuple[int, int]] = (None, (0, 0))

    def _model_size(self) -> tuple[int, int]:
        model, size = self._counted
        return size if model is self.model else size_of(self.model)


def _step_of(checkpoint: str, otherwise: int) -> int:
    number = Path(checkpoint).name.rpartition("-")[2]
    return int(number) if number.isdigit() else otherwise
