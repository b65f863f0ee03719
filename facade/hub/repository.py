"""Access a model repository on the Hub with `huggingface_hub`."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import call_with_retries, explain

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

SILENCE_TIMEOUT = 300.0
"""Seconds without received data after which a connection counts as broken.

Without this timeout a training could hang.
"""

TRAINER_MODULES = ("transformers.trainer", f"{__name__.partition('.')[0]}.facade.trainer")
"""Modules in which tests of other libraries replace functions of `huggingface_hub`."""

_NOT_A_BRANCH = re.compile(r"[0-9a-f]{40}|refs/.+")
"""Revisions that cannot be branches: commits, and full names of references."""

_LICENSE_TAG = "license:"
_LICENSE_TIMEOUT = 10.0
"""Seconds to wait for the license of a base model, which is optional on a card."""


@dataclass(frozen=True)
class Repository:
    """A repository, which may not exist yet. Its token is never shown.

    Methods that access the Hub retry after transient errors. They raise the errors of
    `huggingface_hub`, such as `HfHubHTTPError`, with a remedy in the message.
    """

    name: str
    """`owner/name`, or only the name if the owner is the account of the token."""
    token: str | None = field(default=None, repr=False)
    """None for the token of `hf auth login` or `HF_TOKEN`."""
    revision: str | None = None
    """Branch for uploads and downloads; None for `main`."""

    def create(self, *, private: bool | None = None) -> Repository:
        """Create the repository and branch if missing; return the repository with its full name.

        Args:
            private: whether a new repository is private; None for the default of the owner.

        Raises:
            OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
            HFValidationError: a ValueError; the name is invalid.
        """
        create_repo = replacement_of("create_repo")
        if create_repo is not None:
            url = create_repo(self.name, token=self.token, private=private, exist_ok=True)
            return replace(self, name=url.repo_id)

        url = self._call(lambda api: api.create_repo(self.name, private=private, exist_ok=True))
        repository = replace(self, name=url.repo_id)
        repository.require_branch()
        return repository

    def require_branch(self) -> None:
        """Create a missing branch now, so that uploads do not fail after hours of training."""
        branch = self.revision
        if branch in (None, "main") or _NOT_A_BRANCH.fullmatch(branch):
            return

        # The revision may also be a tag, which exists already.
        refs = self._call(lambda api: api.list_repo_refs(self.name))
        names = {ref.name for ref in (*refs.branches, *refs.tags)}
        if branch not in names:
            logger.info("Creating the branch %s of %s", branch, self.name)
            self._call(lambda api: api.create_branch(self.name, branch=branch, exist_ok=True))

    def upload(
        self,
        folder: Path,
        message: str,
        *,
        path_in_repo: str | None = None,
        ignore: Sequence[str] = (),
        delete_missing: bool = False,
    ) -> CommitInfo:
        """Upload a folder as one commit. Unchanged files are not sent again.

        Args:
            folder: the local folder to upload.
            message: the message of the commit.
            path_in_repo: folder of the repository for the files; None for the root.
            ignore: patterns of excluded files.
            delete_missing: delete files of the target that `folder` lacks.
        """
        arguments: dict[str, Any] = {
            "repo_id": self.name,
            "revision": self.revision,
            "commit_message": message,
            "folder_path": folder,
            "path_in_repo": path_in_repo,
            "delete_patterns": None,
        }
        if delete_missing:
            arguments["delete_patterns"] = "*"

        upload_folder = replacement_of("upload_folder")
        if upload_folder is not None:
            return upload_folder(**arguments, token=self.token, ignore_patterns=list(ignore))

        # Pass a copy in each attempt, because huggingface_hub appends to the list of patterns.
        return self._call(lambda api: api.upload_folder(**arguments, ignore_patterns=list(ignore)))

    def newest_commit(self) -> str:
        """Return the current commit of the branch."""
        model_info = self._call(lambda api: api.model_info(self.name, revision=self.revision))
        return str(model_info.sha)

    def download(self, folder: str, commit: str) -> Path:
        """Download a folder of the repository into the cache of `huggingface_hub`.

        Args:
            folder: the name of the folder in the repository.
            commit: the id of the commit to read.

        Returns:
            The local folder, which does not exist if the repository lacks it.
        """
        files = [f"{folder}/*"]
        snapshot = self._call(
            lambda api: api.snapshot_download(self.name, revision=commit, allow_patterns=files)
        )
        return Path(snapshot, folder)

    def license_of(self, base_model: str) -> str | None:
        """Return the license of a model on the Hub; None if unknown or unreachable."""
        if is_offline():
            return None
        try:
            model_info = self._api().model_info(base_model, timeout=_LICENSE_TIMEOUT)
            tags = model_info.tags or []
        except Exception as error:
            # A card without a license is better than an upload that fails.
            logger.info("Could not read the license of %s (%s).", base_model, type(error).__name__)
            return None

        for tag in tags:
            if tag.startswith(_LICENSE_TAG):
                return tag.removeprefix(_LICENSE_TAG)
        return None

    def _call(self, request: Callable[[HfApi], Result]) -> Result:
        """Send a request to the Hub, retry after transient errors, and explain other errors."""
        try:
            return call_with_retries(lambda: request(self._api()), self.token)
        except Exception as error:
            explain(error, self.name, self.token)
            explained = error

        # Raise outside of the `except` block. Otherwise the original error, whose frames contain
        # the token, would be attached as its context.
        raise explained from explained.__cause__

    def _api(self) -> HfApi:
        """Return the client of the Hub, with the token of this repository."""
        from huggingface_hub import HfApi

        # Set the timeout for each request, because `huggingface_hub` opens a new client without a
        # timeout after connection errors.
        _set_silence_timeout()
        return HfApi(token=self.token, library_name="lightrainer")


def _set_silence_timeout() -> None:
    """Set a timeout on the connections of the client, unless one is set.

    It limits the time without data instead of the whole request, so slow uploads do not fail.
    """
    from huggingface_hub.utils import get_session

    session = get_session()
    timeouts = set(session.timeout.as_dict().values())
    if timeouts == {None}:
        session.timeout = SILENCE_TIMEOUT


def replacement_of(name: str) -> Callable[..., Any] | None:
    """Return the function that a test has put in place of a function of `huggingface_hub`.

    None if the function was not replaced in a module of the Trainer.

    Args:
        name: `create_repo` or `upload_folder`.
    """
    import huggingface_hub

    original = getattr(huggingface_hub, name)
    for module_name in TRAINER_MODULES:
        if module_name in sys.modules:
            function = vars(sys.modules[module_name]).get(name)
            if function is not None and function is not original:
                return function
    return None


def is_offline() -> bool:
    """Return whether `HF_HUB_OFFLINE` was set when `huggingface_hub` was imported."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_repository_name(name: str) -> bool:
    """Return whether a name is valid for a repository."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
