"""Checkpoints, from the Hugging Face Hub."""

from __future__ import annotations

import logging
import os
import re

from ...lightning_modules.common.redaction import secret
from ..hub import Repository
from ..hub.staging import LAST_CHECKPOINT
from .checks import CheckpointNotFoundError
from .saving import Saving

logger = logging.getLogger(__name__)

_CHECKPOINT = re.compile(rf"{LAST_CHECKPOINT}|checkpoint-\d+")


class Downloading(Saving):
    """From the Hub to folders."""

    def _checkpoint_elsewhere(self, name: str) -> str | None:
        """A checkpoint that is no folder here by that name: in `output_dir`, or in the repository."""
        if not _CHECKPOINT.fullmatch(name) or not (self.args.hub_model_id or self.args.push_to_hub):
            return None
        found, problem = "", None
        if self.is_world_process_zero():  # all take the same commit, whatever is uploaded meanwhile
            try:
                found = self._place_of(name)
            except Exception as error:
                problem = error
        found = self._from_main_process(found)
        if problem is not None:
            raise problem
        repository, _, commit = found.rpartition("\n")
        return self._downloaded(name, repository, commit) if repository else found or None

    def _place_of(self, name: str) -> str:
        """A folder of `output_dir`, as in a clone of the repository, or else repository and commit, in two lines."""
        cloned = os.path.join(str(self.args.output_dir), name)
        if os.path.isdir(cloned):
            return cloned
        repository = self._repository()
        return f"{repository.name}\n{repository.newest_commit()}"

    def _downloaded(self, name: str, repository: str, commit: str) -> str:
        logger.info("Downloading %s of the repository %s, commit %s", name, repository, commit)
        folder = self._repository(repository).download(name, commit)
        if not folder.is_dir():
            raise CheckpointNotFoundError(
                f"Can't find a valid checkpoint {name!r}: there is no such folder, neither here nor in output_dir, nor "
                f"in the repository {repository!r} on the Hub. hub_strategy='checkpoint' uploads the newest "
                f"checkpoint as {LAST_CHECKPOINT!r}, 'all_checkpoints' all of them."
            )
        return str(folder)

    @property
    def _output_name(self) -> str:
        return os.path.basename(os.path.abspath(str(self.args.output_dir)))

    def _repository(
        self, name: str | None = None, *, token: str | None = None, revision: str | None = None
    ) -> Repository:
        """That of the arguments, but for what is given."""
        full: str = name or self.hub_model_id or self.args.hub_model_id or self._output_name
        return Repository(full, secret(token or self.args.hub_token), revision or self.args.hub_revision)
