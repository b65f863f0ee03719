"""Trackio, local or on a Space of the Hub."""

from __future__ import annotations

import logging
import re
import secrets
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .base import PredictionLogger
from .values import description, parameter_count, rewrite_logs, without_summary

if TYPE_CHECKING:
    from torch import nn

    from ...facade import TrainingArguments


logger = logging.getLogger(__name__)


class TrackioCallback(PredictionLogger):
    """Log to a project of Trackio.

    Works like `transformers.integrations.TrackioCallback`, but later logs are added to the same
    run.

    Reads the arguments `run_name`, `project`, `trackio_space_id` (unset keeps the data on this
    machine), `trackio_bucket_id`, `trackio_static_space_id` and `hub_private_repo`, and trackio's
    own environment variables (`TRACKIO_DIR`, `TRACKIO_SPACE_ID`, ...). As in later versions of
    transformers, a static copy of the Space is created at the end of the training, unless
    `trackio_static_space_id=False`. A project on this machine is uploaded as a static Space when
    the model is pushed to the Hub, and the model card links to it.

    Raises:
        MissingTrackerError: an ImportError; trackio is not installed.
    """

    SPACE_URL = "https://huggingface.co/spaces/{space_id}"

    platform = "trackio"
    advice = (
        "A Space (`trackio_space_id`) needs `hf auth login`; without one the run stays on this "
        "machine."
    )
    ends_with_training = True

    def __init__(self) -> None:
        super().__init__()
        self._trackio: Any = import_module("trackio")
        self._space_id: str | None = None
        self._static_space_id: str | None = None
        self._description: dict[str, Any] = {}

        # Arguments and model of the last training, for later events. None before the first one.
        self._args: TrainingArguments | None = None
        self._model: nn.Module | None = None

    def on_push_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Upload a project on this machine as a static Space, and add it to the model's tags."""
        if not state.is_world_process_zero or not self._initialized:
            return
        # A project on a Space has its static copy from the end of the training.
        has_live_space = bool(self._space_id)
        if has_live_space or not _allows_static_space(args):
            return
        with self._failures_as_warnings("the project"):
            self._static_space_id = self._trackio.sync(
                project=args.project,
                sdk="static",
                space_id=self._name_of_static_space(args),
                private=args.hub_private_repo,
                bucket_id=_bucket_id(args),
                force=True,
            )
            self._tag(model)

    def _start(self, args: TrainingArguments, state: TrainerState, model: nn.Module | None) -> None:
        self._args = args
        self._model = model
        self._description = description(args, model)
        count = parameter_count(model)
        if count is not None:
            self._description["model/num_parameters"] = count
        self._open_run(args, state.trial_name or args.run_name or self._run_to_resume(state))

    def _open_run(self, args: TrainingArguments, name: str | None) -> None:
        options: dict[str, Any] = {"resume": "allow", "private": args.hub_private_repo}
        # Trials of a search share a group.
        if args.run_name and name != args.run_name:
            options["group"] = args.run_name
        bucket_id = _bucket_id(args)
        if bucket_id is not None:
            options["bucket_id"] = bucket_id
        run = self._trackio.init(
            project=args.project, name=name, space_id=args.trackio_space_id, **options
        )
        self._trackio.config.update(self._description)
        self.run_id = getattr(run, "name", name)
        # trackio adds the name of the user if the argument has none.
        self._space_id = self._trackio.context_vars.current_space_id.get()

    def _report(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        self._send({**without_summary(logs), "train/global_step": state.global_step})

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        self._send(rewrite_logs(metrics))

    def _send(self, values: dict[str, Any]) -> None:
        """Log values; after the training reopen its run, for the metrics of `predict`."""
        # Without `_args` no training has opened a run yet.
        if not self._has_finished or self._args is None:
            self._trackio.log(values)
            return
        self._open_run(self._args, self.run_id)
        try:
            self._trackio.log(values)
        finally:
            self._trackio.finish()

    def _finish(self) -> None:
        self._trackio.finish()
        args = self._args
        if args is not None and self._space_id is not None and _allows_static_space(args):
            self._freeze(args)

    def _freeze(self, args: TrainingArguments) -> None:
        """Create a static copy of the Space, which needs no server."""
        if not hasattr(self._trackio, "freeze"):
            logger.warning(
                "No static copy of the Space is created: this version of trackio cannot do that. "
                "Upgrade it with `pip install --upgrade trackio`."
            )
            return
        self._static_space_id = self._trackio.freeze(
            space_id=self._space_id,
            project=args.project,
            new_space_id=self._name_of_static_space(args),
            private=args.hub_private_repo,
        )
        self._tag(self._model)

    def _name_of_static_space(self, args: TrainingArguments) -> str:
        """Return the name of the earlier copy, or that of the arguments, or a new one."""
        # Arguments of transformers 5.3 and of the bridge to Lightning lack this one.
        chosen = getattr(args, "trackio_static_space_id", None)
        return self._static_space_id or chosen or _new_space_name(args.project)

    def _tag(self, model: nn.Module | None) -> None:
        """Add the Space to the model's tags, from which the model card and the Hub take it."""
        if model is None:
            return

        # The link to an earlier Space is replaced.
        url = self.SPACE_URL.format(space_id=self._static_space_id or self._space_id)
        tags: list[str] = getattr(model, "model_tags", None) or []
        tags = [tag for tag in tags if not str(tag).startswith("trackio:https://")]
        tags += ["trackio", f"trackio:{url}"]
        model.model_tags = list(dict.fromkeys(tags))  # pyright: ignore[reportArgumentType] - torch declares tensors and modules only


def _bucket_id(args: TrainingArguments) -> str | None:
    """Return the argument `trackio_bucket_id`, which transformers 5.3 does not have.

    The callback also serves the Trainer of transformers.
    """
    return getattr(args, "trackio_bucket_id", None)


def _allows_static_space(args: TrainingArguments) -> bool:
    return getattr(args, "trackio_static_space_id", None) is not False


def _new_space_name(project: str) -> str:
    """Return a valid name for a Space, made unique by a random suffix."""
    name = re.sub(r"[^a-z0-9._-]", "-", project.strip().lower())
    name = re.sub(r"-+", "-", name).strip("-_.")
    name = name or "trackio-project"
    # The Hub allows names of up to 96 characters.
    prefix = name[:81].rstrip("-")
    return f"{prefix}-static-{secrets.token_hex(3)}"
