"""Model repository on the Hub, accessed by `huggingface_hub`."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import explained, retried

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_FIXED = re.compile(r"[0-9a-f]{40}|refs/.+")
"""Revisions that cannot be branches: commits, and full names of references."""
_LICENSE = "license:"
_PATIENCE = 10.0
"""Timeout in seconds for optional information."""
TRAINER_MODULES = ("transformers.trainer", f"{__name__.partition('.')[0]}.facade.trainer")
"""Modules in which tests of libraries replace functions of `huggingface_hub`."""
SILENCE = 300.0
"""Seconds without a byte after which a connection counts as broken; without it a training could
hang.
"""


@dataclass(frozen=True)
class Repository:
    """A repository by name, existing or not; its token is never shown.

    Methods that access the Hub retry transient errors, and raise those of `huggingface_hub`
    (`HfHubHTTPError` and the like) with a remedy in the message.
    """

    name: str
    """`owner/name`, or just the name in the account of the token."""
    token: str | None = field(default=None, repr=False)
    """None for that of `hf auth login` or `HF_TOKEN`."""
    revision: str | None = None
    """Branch for uploads and downloads; None for `main`."""

    def created(self, *, private: bool | None = None) -> Repository:
        """Create repository and branch if missing; returns the repository with its full name.

        Args:
            private: of a new repository; None for the default of the owner.

        Raises:
            OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
            HFValidationError: a ValueError; the name is invalid.
        """
        create = replaced("create_repo")
        if create is not None:
            return replace(
                self,
                name=create(self.name, token=self.token, private=private, exist_ok=True).repo_id,
            )
        url = self._call(lambda api: api.create_repo(self.name, private=private, exist_ok=True))
        made = replace(self, name=url.repo_id)
        made.require_branch()
        return made

    def require_branch(self) -> None:
        """Create the branch if missing, so that uploads do not fail after hours of training."""
        branch = self.revision
        if branch in (None, "main") or _FIXED.fullmatch(branch):
            return
        refs = self._call(lambda api: api.list_repo_refs(self.name))
        if branch not in {ref.name for ref in (*refs.branches, *refs.tags)}:
            logger.info("Making the branch %s of %s", branch, self.name)
            self._call(lambda api: api.create_branch(self.name, branch=branch, exist_ok=True))

    def upload(
        self,
        folder: Path,
        message: str,
        *,
        to: str | None = None,
        ignore: Sequence[str] = (),
        whole: bool = False,
    ) -> CommitInfo:
        """Upload a folder as one commit; unchanged files are not sent again.

        Args:
            folder: its contents go to the top of the repository, or into `to`.
            message: of the commit.
            to: folder of the repository.
            ignore: patterns of excluded files.
            whole: delete files in `to` that `folder` lacks.
        """
        upload = replaced("upload_folder")
        settings: dict[str, Any] = {
            "repo_id": self.name,
            "revision": self.revision,
            "commit_message": message,
        }
        settings |= {
            "folder_path": folder,
            "path_in_repo": to,
            "delete_patterns": "*" if whole else None,
        }
        if upload is not None:
            return upload(**settings, token=self.token, ignore_patterns=list(ignore))
        # huggingface_hub appends to the list of patterns, so each attempt gets a copy.
        return self._call(lambda api: api.upload_folder(**settings, ignore_patterns=list(ignore)))

    def newest_commit(self) -> str:
        """Return the current commit of the branch."""
        return str(self._call(lambda api: api.model_info(self.name, revision=self.revision).sha))

    def download(self, folder: str, commit: str) -> Path:
        """Download a folder of the repository into the cache.

        Args:
            folder: its name in the repository.
            commit: the revision.

        Returns:
            the folder; it does not exist if the repository lacks it.
        """
        path = self._call(
            lambda api: api.snapshot_download(
                self.name, revision=commit, allow_patterns=[f"{folder}/*"]
            )
        )
        return Path(path, folder)

    def license_of(self, base_model: str) -> str | None:
        """Return the license of a model on the Hub; None if unknown or unreachable."""
        if is_offline():
            return None
        try:
            tags = self._api().model_info(base_model, timeout=_PATIENCE).tags or []
        except Exception as error:  # optional for a card
            logger.info("The license of %s is not known (%s).", base_model, type(error).__name__)
            return None
        return next((tag.removeprefix(_LICENSE) for tag in tags if tag.startswith(_LICENSE)), None)

    def _call(self, ask: Callable[[HfApi], Result]) -> Result:
        try:
            return retried(lambda: ask(self._api()), self.token)
        except Exception as error:
            failed = explained(error, self.name, self.token)
        raise failed from failed.__cause__

    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        _limit_silence()
        return HfApi(token=self.token, library_name="lightrainer")


def _limit_silence() -> None:
    """Set a timeout on the connections of the client, unless one is set.

    It limits the time without a byte, not that of a request, so that slow uploads are fine.
    """
    from huggingface_hub.utils import get_session

    session = get_session()
    if set(session.timeout.as_dict().values()) == {None}:
        session.timeout = SILENCE


def replaced(name: str) -> Callable[..., Any] | None:
    """Return the replacement of a function of `huggingface_hub` in the module of the Trainer, if
    any.

    Args:
        name: `create_repo` or `upload_folder`.
    """
    import huggingface_hub

    own = getattr(huggingface_hub, name)
    found = (
        vars(sys.modules[module]).get(name) for module in TRAINER_MODULES if module in sys.modules
    )
    return next((one for one in found if one is not None and one is not own), None)


def is_offline() -> bool:
    """Return whether `HF_HUB_OFFLINE` was set when `huggingface_hub` was imported."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars of `huggingface_hub` in the block, unless its environment variable
    enables them.
    """
    from huggingface_hub import constants, utils

    if utils.are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def is_repository_name(name: Any) -> bool:
    """Return whether a name is valid for a repository."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
