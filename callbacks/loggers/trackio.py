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

    from ..arguments import CallbackArguments

logger = logging.getLogger(__name__)


class TrackioCallback(PredictionLogger):
    """As `transformers.integrations.TrackioCallback`, but logs after the training go to the same
    run.

    Reads the arguments `run_name`, `project`, `trackio_space_id` (unset keeps the data on this
    machine), `trackio_bucket_id`, `trackio_static_space_id` and `hub_private_repo`, and trackio's
    own environment variables (`TRACKIO_DIR`, `TRACKIO_SPACE_ID`, ...). As in later versions of the
    reference, a static copy of the Space is made when training is over, unless
    `trackio_static_space_id=False`; a project on this machine is uploaded as one when the model is
    pushed to the Hub, whose card then points at it.

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
        self._args: Any = None
        self._model: Any = None

    def on_push_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Upload a project that is kept on this machine as a static Space, and let the model's
        tags name it.
        """
        asked = getattr(args, "trackio_static_space_id", None)
        if (
            not state.is_world_process_zero
            or not self._initialized
            or self._space_id
            or asked is False
        ):
            return
        with self._training_goes_on("the project"):
            self._static_space_id = self._trackio.sync(
                project=args.project,
                sdk="static",
                space_id=self._static_space_id or asked or _static_space(args.project),
                private=args.hub_private_repo,
                bucket_id=getattr(args, "trackio_bucket_id", None),
                force=True,
            )
            self._tag(model)

    def _start(self, args: CallbackArguments, state: TrainerState, model: nn.Module | None) -> None:
        self._args = args
        self._model = model
        count = parameter_count(model)
        counted = {} if count is None else {"model/num_parameters": count}
        self._description = {**description(args, model), **counted}
        self._open(args, state.trial_name or args.run_name or self._run_to_resume(state))

    def _open(self, args: CallbackArguments, name: str | None) -> None:
        more = {"resume": "allow", "private": args.hub_private_repo}
        if name != args.run_name and args.run_name:
            more["group"] = args.run_name
        if getattr(args, "trackio_bucket_id", None) is not None:
            more["bucket_id"] = args.trackio_bucket_id
        run = self._trackio.init(
            project=args.project, name=name, space_id=args.trackio_space_id, **more
        )
        self._trackio.config.update(self._description)
        self.run_id = getattr(run, "name", name)
        # with the name of the user, if any
        self._space_id = self._trackio.context_vars.current_space_id.get()

    def _report(self, args: CallbackArguments, state: TrainerState, logs: dict[str, Any]) -> None:
        self._send({**without_summary(logs), "train/global_step": state.global_step})

    def _report_prediction(self, state: TrainerState, metrics: dict[str, float]) -> None:
        self._send(rewrite_logs(metrics))

    def _send(self, values: dict[str, Any]) -> None:
        if not self._over:
            self._trackio.log(values)
            return
        self._open(self._args, self.run_id)
        try:
            self._trackio.log(values)
        finally:
            self._trackio.finish()

    def _finish(self) -> None:
        self._trackio.finish()
        if (
            self._space_id is not None
            and getattr(self._args, "trackio_static_space_id", None) is not False
        ):
            self._freeze()

    def _freeze(self) -> None:
        """Make a copy of the Space that needs no machine to run on."""
        args = self._args
        if not hasattr(self._trackio, "freeze"):
            logger.warning(
                "No static copy of the Space is made: `pip install --upgrade trackio` for one that "
                "can."
            )
            return
        asked = (
            self._static_space_id
            or getattr(args, "trackio_static_space_id", None)
            or _static_space(args.project)
        )
        self._static_space_id = self._trackio.freeze(
            space_id=self._space_id,
            project=args.project,
            new_space_id=asked,
            private=args.hub_private_repo,
        )
        self._tag(self._model)

    def _tag(self, model: Any) -> None:
        """Name the Space among the model's tags, from which the model card and the Hub take it."""
        url = self.SPACE_URL.format(space_id=self._static_space_id or self._space_id)
        tags = [
            tag
            for tag in getattr(model, "model_tags", None) or []
            if not str(tag).startswith("trackio:https://")
        ]
        model.model_tags = [*dict.fromkeys([*tags, "trackio", f"trackio:{url}"])]


def _static_space(project: str) -> str:
    """Return a valid name for a Space, made unique by a random suffix."""
    plain = re.sub(r"-+", "-", re.sub(r"[^a-z0-9._-]", "-", project.strip().lower())).strip("-_.")
    return f"{(plain or 'trackio-project')[:81].rstrip('-')}-static-{secrets.token_hex(3)}"
