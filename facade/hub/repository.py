"""One model repository on the Hub, and what is done to it, through `huggingface_hub`."""

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
"""Revisions that nobody can make a branch of: commits, and references by their full name."""
_LICENSE = "license:"
_PATIENCE = 10.0
"""Seconds to wait for what is only nice to know."""
TRAINER_MODULES = ("transformers.trainer", f"{__name__.partition('.')[0]}.facade.trainer")
"""Where the functions of `huggingface_hub` that the Trainer calls may be replaced."""
SILENCE = 300.0
"""Seconds without a byte after which a connection counts as broken; without a limit a training would never end."""


@dataclass(frozen=True)
class Repository:
    """A repository by its name, whether it exists yet or not; its token is shown nowhere.

    Every method that reaches the Hub raises what `huggingface_hub` raises (`HfHubHTTPError` and the like), with a
    sentence on what to do, after a few more attempts where the trouble may pass.
    """

    name: str
    """`owner/name`, or just the name in the account of the token."""
    token: str | None = field(default=None, repr=False)
    """None takes the one that this machine knows: of `hf auth login`, or `HF_TOKEN`."""
    revision: str | None = None
    """The branch to upload to and to download from; None means `main`."""

    def created(self, *, private: bool | None = None) -> Repository:
        """The repository with its full name, made if it was not there, and so its branch.

        Args:
            private: of a new repository; None leaves it to the settings of the owner.

        Raises:
            OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
            HFValidationError: a ValueError; there can be no repository of that name.
        """
        create = replaced("create_repo")
        if create is not None:
            return replace(self, name=create(self.name, token=self.token, private=private, exist_ok=True).repo_id)
        require_online(f"create the repository {self.name!r}")
        url = self._call(lambda api: api.create_repo(self.name, private=private, exist_ok=True))
        made = replace(self, name=url.repo_id)
        made.require_branch()
        return made

    def require_branch(self) -> None:
        """Make the branch, so that no upload fails for the want of it after hours of training."""
        branch = self.revision
        if branch in (None, "main") or _FIXED.fullmatch(branch):
            return
        refs = self._call(lambda api: api.list_repo_refs(self.name))
        if branch not in {ref.name for ref in (*refs.branches, *refs.tags)}:
            logger.info("Making the branch %s of %s", branch, self.name)
            self._call(lambda api: api.create_branch(self.name, branch=branch, exist_ok=True))

    def upload(
        self, folder: Path, message: str, *, to: str | None = None, ignore: Sequence[str] = (), whole: bool = False
    ) -> CommitInfo:
        """Upload a folder as one commit; files that are there already are not sent again.

        Args:
            folder: what is in it goes to the top of the repository, or into `to`.
            message: of the commit.
            to: a folder of the repository.
            ignore: patterns of files that stay here.
            whole: remove from `to` what `folder` does not have.
        """
        upload = replaced("upload_folder")
        settings: dict[str, Any] = {
            "repo_id": self.name,
            "folder_path": folder,
            "path_in_repo": to,
            "commit_message": message,
            "revision": self.revision,
            "delete_patterns": "*" if whole else None,
        }
        if upload is not None:
            return upload(**settings, token=self.token, ignore_patterns=list(ignore))
        # They add to the list of patterns, so each attempt has its own.
        return self._call(lambda api: api.upload_folder(**settings, ignore_patterns=list(ignore)))

    def newest_commit(self) -> str:
        """The commit that the branch is at now."""
        return str(self._call(lambda api: api.model_info(self.name, revision=self.revision).sha))

    def download(self, folder: str, commit: str) -> Path:
        """A folder of the repository, in the cache of this machine.

        Args:
            folder: its name in the repository.
            commit: as it was at this commit.

        Returns:
            the folder; it does not exist if the repository does not have it.
        """
        found = self._call(
            lambda api: api.snapshot_download(self.name, revision=commit, allow_patterns=[f"{folder}/*"])
        )
        return Path(found, folder)

    def license_of(self, base_model: str) -> str | None:
        """The license of another model on the Hub; None where it is not known, or the Hub cannot be asked."""
        if is_offline():
            return None
        try:
            tags = self._api().model_info(base_model, timeout=_PATIENCE).tags or []
        except Exception as error:  # whatever it is, a card can do without
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
    """Give the client's connections the limit, unless somebody has set one.

    The time without any byte counts, not that of the request: a slow upload is no trouble.
    """
    from huggingface_hub.utils import get_session

    session = get_session()
    if set(session.timeout.as_dict().values()) == {None}:
        session.timeout = SILENCE


def replaced(name: str) -> Callable[..., Any] | None:
    """A function of `huggingface_hub` that somebody replaced in the module of the Trainer, as tests do.

    Args:
        name: `create_repo` or `upload_folder`.
    """
    import huggingface_hub

    own = getattr(huggingface_hub, name)
    found = (vars(sys.modules[module]).get(name) for module in TRAINER_MODULES if module in sys.modules)
    return next((one for one in found if one is not None and one is not own), None)


def is_offline() -> bool:
    """Whether `HF_HUB_OFFLINE` was set when `huggingface_hub` was imported."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def require_online(purpose: str) -> None:
    """Say at once that nothing can be uploaded.

    Raises:
        OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
    """
    if not is_offline():
        return
    from huggingface_hub.errors import OfflineModeIsEnabled

    raise OfflineModeIsEnabled(
        f"Cannot {purpose}: HF_HUB_OFFLINE=1 keeps this process off the Hub. Unset it, or leave push_to_hub out: "
        "create_model_card() works offline, and the output folder can be uploaded later with `hf upload`."
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let `huggingface_hub` show no progress bars, unless its own environment variable says that it shall."""
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
    """Whether the Hub could have a repository of this name."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
