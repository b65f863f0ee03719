"""Where the files of a tokenizer are: a file, a folder, or a repository on the Hub."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.redaction import bare, secret
from .names import (
    ADDED_TOKENS_FILE,
    CHAT_TEMPLATE_FILE,
    CHAT_TEMPLATE_FOLDER,
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
)

logger = logging.getLogger(__name__)

MODEL_FILE = "config.json"

_FILES = (
    *(TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE, CHAT_TEMPLATE_FILE, MODEL_FILE),
    f"{CHAT_TEMPLATE_FOLDER}/*.jinja",
)
_OTHERS = ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files that there are."""

    tokenizer: Path
    """tokenizer.json"""
    is_local: bool = True
    """Whether a folder was given."""
    others: dict[str, Path] = field(default_factory=dict)
    """Name to path of the rest: settings, tokens, the chat template."""
    templates: dict[str, Path] = field(default_factory=dict)
    """Name to path of further chat templates."""


def files_of(name: str, subfolder: str | None = None, **hub: Any) -> TokenizerFiles:
    """Find the files, on the Hub if `name` is neither a file nor a folder.

    Args:
        name: a path, or `owner/name` of a repository.
        subfolder: where in the folder or repository they are.
        hub: `cache_dir`, `force_download`, `local_files_only`, `token`, `revision`, for repositories.

    Raises:
        OSError: there are none, or they cannot be had; it says what to do.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return TokenizerFiles(path, is_local=False)
    if path.is_dir():
        return _of_folder(path / (subfolder or ""), name, is_local=True)
    return _of_folder(_download(name, subfolder, **hub) / (subfolder or ""), name, is_local=False)


def _of_folder(folder: Path, name: str, is_local: bool) -> TokenizerFiles:
    if not (folder / TOKENIZER_FILE).is_file():
        raise _missing(folder, name)
    others = {each: folder / each for each in _FILES[1:-1] if (folder / each).is_file()}
    templates = {path.stem: path for path in sorted((folder / CHAT_TEMPLATE_FOLDER).glob("*.jinja"))}
    return TokenizerFiles(folder / TOKENIZER_FILE, is_local, others, templates)


def _missing(folder: Path, name: str) -> OSError:
    others = [each for each in _OTHERS if (folder / each).is_file()]
    if others:
        return OSError(
            f"{name!r} has no {TOKENIZER_FILE}, but {', '.join(others)}, of which lightrainer makes no tokenizer. Make "
            f"the file once with transformers: AutoTokenizer.from_pretrained({name!r}).save_pretrained(folder)."
        )
    return OSError(
        f"{name!r} has no {TOKENIZER_FILE}, so there is no tokenizer in it. See that it is the folder (or repository) "
        "that `tokenizer.save_pretrained` wrote, or pass its `subfolder`. Of older files transformers makes one: "
        f"AutoTokenizer.from_pretrained({name!r}).save_pretrained(folder)."
    )


def _download(
    name: str,
    subfolder: str | None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: str | bool | None = None,
    revision: str | None = None,
) -> Path:
    """The repository's files in the cache of this machine; only those that are new are downloaded."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise OSError(f"{name!r} is neither a file nor a folder, nor can it be a repository on the Hub.") from error
    options = {
        "revision": revision,
        "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
        "force_download": force_download,
        "token": secret(token),
        "allow_patterns": [f"{subfolder}/{each}" if subfolder else each for each in _FILES],
        "library_name": "lightrainer",
    }
    offline = bool(local_files_only or constants.HF_HUB_OFFLINE)
    try:
        folder = Path(snapshot_download(name, local_files_only=offline, **options))
    except Exception as error:
        bare(error, token)
        cached = None if offline else _cached(name, options, error)
        if cached is None:
            raise _hub_error(name, revision, local_files_only, error) from error
        folder = cached
    if offline and not (folder / (subfolder or "") / TOKENIZER_FILE).is_file():
        raise _offline_error(name, local_files_only)
    return folder


def _cached(name: str, options: dict[str, Any], error: Exception) -> Path | None:
    """What is in the cache, where the Hub gave no answer; the client looks there for some of the reasons only."""
    from huggingface_hub import errors, snapshot_download

    answers = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.LocalEntryNotFoundError)
    if isinstance(error, answers):
        return None
    try:
        folder = Path(snapshot_download(name, local_files_only=True, **options))
    except errors.LocalEntryNotFoundError:
        return None
    logger.warning("The Hub gave no answer (%s): %r is taken from the cache.", type(error).__name__, name)
    return folder


def _hub_error(name: str, revision: str | None, local_files_only: bool, error: Exception) -> OSError:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        why = "its owner grants access to those who ask for it on its page, with a token (`hf auth login`)"
    elif isinstance(error, errors.RepositoryNotFoundError):
        why = "there is no such folder here, nor such a repository there; a private one needs a token (`hf auth login`)"
    elif isinstance(error, errors.RevisionNotFoundError):
        why = f"it has no revision {revision!r}"
    elif local_files_only or constants.HF_HUB_OFFLINE:
        return _offline_error(name, local_files_only)
    elif isinstance(error, errors.LocalEntryNotFoundError):
        why = "it cannot be reached, and the files are not in the cache of this machine"
    else:
        why = f"it gave no answer, and the files are not in the cache of this machine ({type(error).__name__}: {error})"
    return OSError(f"The tokenizer {name!r} cannot be had from the Hub: {why}.")


def _offline_error(name: str, local_files_only: bool) -> OSError:
    why = "`local_files_only=True`" if local_files_only else "HF_HUB_OFFLINE=1"
    return OSError(
        f"{why} keeps this process off the Hub, and the tokenizer {name!r} is not in the cache of this machine. "
        f"Download it once while online (`hf download {name}`), or pass a folder."
    )
