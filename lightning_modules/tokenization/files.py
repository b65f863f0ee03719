"""Find the files of a tokenizer (a file, a folder, a repository on the Hub), and read the
arguments of its class.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..common.json_files import read_object
from ..common.redaction import is_secret_name, secret, strip_token
from .names import (
    ADDED_TOKENS_FILE,
    CHAT_TEMPLATE_FILE,
    CHAT_TEMPLATE_FOLDER,
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    AddedToken,
)

logger = logging.getLogger(__name__)

MODEL_FILE = "config.json"

_FILES = (
    *(
        TOKENIZER_FILE,
        CONFIG_FILE,
        SPECIAL_TOKENS_FILE,
        ADDED_TOKENS_FILE,
        CHAT_TEMPLATE_FILE,
        MODEL_FILE,
    ),
    f"{CHAT_TEMPLATE_FOLDER}/*.jinja",
)
_OTHERS = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@dataclass(frozen=True)
class TokenizerFiles:
    """The files that there are."""

    tokenizer: Path
    """tokenizer.json"""
    is_local: bool = True
    """A folder was given, not a file or a repository."""
    others: dict[str, Path] = field(default_factory=dict)
    """Name to path of the rest: settings, tokens, the chat template."""
    templates: dict[str, Path] = field(default_factory=dict)
    """Name to path of further chat templates."""

    def content(self, name: str) -> dict[str, Any]:
        """Return what is in a JSON file, see `settings_file`; nothing where there is no such
        file.
        """
        return settings_file(self.others[name]) if name in self.others else {}


def files_of(name: str, subfolder: str | None = None, **hub: Any) -> TokenizerFiles:
    """Find the files, on the Hub if `name` is neither a file nor a folder.

    Args:
        name: a path, or `owner/name` of a repository.
        subfolder: where in the folder or repository they are.
        hub: `cache_dir`, `force_download`, `local_files_only`, `token`, `revision`, for
            repositories.

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
    templates = {
        path.stem: path for path in sorted((folder / CHAT_TEMPLATE_FOLDER).glob("*.jinja"))
    }
    return TokenizerFiles(folder / TOKENIZER_FILE, is_local, others, templates)


def _missing(folder: Path, name: str) -> OSError:
    others = [each for each in _OTHERS if (folder / each).is_file()]
    found = (
        f"but {', '.join(others)}, of which lightrainer makes no tokenizer"
        if others
        else "nor a part of one"
    )
    return OSError(
        f"{name!r} has no {TOKENIZER_FILE}, {found}. Pass the folder or repository that "
        "`tokenizer.save_pretrained` wrote, or its `subfolder`; of older files transformers "
        f"makes one: AutoTokenizer.from_pretrained({name!r}).save_pretrained(folder)."
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
    """Return the repository's files in the cache of this machine; only those that are new are
    downloaded.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import HFValidationError

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            force_download=force_download,
            local_files_only=local_files_only,
            token=secret(token),
            allow_patterns=[f"{subfolder}/{each}" if subfolder else each for each in _FILES],
            library_name="lightrainer",
        )
    except HFValidationError as error:
        raise OSError(
            f"{name!r} is neither a file nor a folder, nor can it be a repository on the Hub."
        ) from error
    except Exception as error:
        strip_token(error, token)
        raise OSError(f"The tokenizer {name!r} cannot be had from the Hub: {error}") from error
    return Path(folder)


def arguments_of(
    files: TokenizerFiles, name: str, attributes: list[str], given: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the class, in the order of precedence of the reference.

    Args:
        files: what there is.
        name: becomes `name_or_path`.
        attributes: the names of special tokens that the class knows.
        given: by the user; takes precedence over the files.

    Returns:
        keyword arguments, among these `tokenizer_object` and `added_tokens_decoder`.

    Raises:
        OSError: a file cannot be read.
    """
    stored = files.content(CONFIG_FILE)
    # may be a token of the Hub
    found = {name: value for name, value in stored.items() if not is_secret_name(name)}
    found.pop("tokenizer_class", None)
    # The post-processor in tokenizer.json adds these tokens, and positional arguments were for
    # subclasses.
    for name_of_setting in ("init_inputs", "add_bos_token", "add_eos_token"):
        found.pop(name_of_setting, None)
    found |= _templates(files)
    found |= given
    if "additional_special_tokens" in found:
        found.setdefault("extra_special_tokens", found.pop("additional_special_tokens"))
    _name_own_tokens(found, attributes)
    found |= {"name_or_path": name, "is_local": files.is_local}
    backend, written = _backend(files.tokenizer)
    found["added_tokens_decoder"] = _added_tokens(files, found, attributes, given, written)
    found = revived(found)
    by_text = {str(token): token for token in found["added_tokens_decoder"].values()}
    for attribute in attributes:
        if found.get(attribute) is not None:
            found[attribute] = by_text.get(str(found[attribute]), found[attribute])
    found["tokenizer_object"] = backend
    return found


def settings_file(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file.

    Raises:
        OSError: it is not JSON, or holds something else than settings; names the file, and the
            place in it.
    """
    try:
        return read_object(path, keys="settings")
    except ValueError as error:
        raise OSError(
            f"{str(error).rstrip('.')}. Is it whole? Save or download it once more."
        ) from None


def _backend(path: Path) -> tuple[Tokenizer, list[dict[str, Any]]]:
    """Return the tokenizer, and its added tokens as they are written."""
    written = settings_file(path).get("added_tokens") or []
    try:
        return Tokenizer.from_file(str(path)), written
    except Exception as error:  # the library raises nothing narrower
        raise OSError(
            f"{path} cannot be read: {error}. Is it newer? pip install -U tokenizers."
        ) from error


def _templates(files: TokenizerFiles) -> dict[str, Any]:
    paths = dict(files.templates)
    if CHAT_TEMPLATE_FILE in files.others:
        paths = {"default": files.others[CHAT_TEMPLATE_FILE], **paths}
    templates = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    if not templates:
        return {}
    return {"chat_template": templates["default"] if list(templates) == ["default"] else templates}


def _name_own_tokens(found: dict[str, Any], attributes: list[str]) -> None:
    """Gather the tokens under names that only this model has."""
    own = {
        name: found.pop(name)
        for name in list(found)
        if name not in attributes
        and name.endswith("_token")
        and isinstance(found[name], (str, AddedToken))
    }
    if isinstance(found.get("extra_special_tokens"), dict):
        own |= found.pop("extra_special_tokens")
    if own:
        found["model_specific_special_tokens"] = own


def _added_tokens(
    files: TokenizerFiles,
    found: dict[str, Any],
    attributes: list[str],
    given: dict[str, Any],
    written: list[Any],
) -> dict[int, AddedToken]:
    if "added_tokens_decoder" in found:  # written by 4.x
        return {
            int(index): _as_token(token) for index, token in found["added_tokens_decoder"].items()
        }
    _take_special_tokens_map(files.content(SPECIAL_TOKENS_FILE), found, given)
    tokens: dict[int, AddedToken] = {}
    special = {str(found[name]) for name in attributes if found.get(name)}
    special |= {str(token) for token in found.get("extra_special_tokens") or []}
    for text, index in files.content(ADDED_TOKENS_FILE).items():
        is_special = text in special
        tokens[index] = AddedToken(
            text, rstrip=False, lstrip=False, normalized=not is_special, special=is_special
        )
    for token in written:
        tokens[token["id"]] = AddedToken(
            **{key: value for key, value in token.items() if key != "id"}
        )
    return tokens


def _take_special_tokens_map(
    named: dict[str, Any], found: dict[str, Any], given: dict[str, Any]
) -> None:
    if "additional_special_tokens" in named:
        named.setdefault("extra_special_tokens", named.pop("additional_special_tokens"))
    for name, value in named.items():
        if given.get(name):
            continue
        if name == "extra_special_tokens" and isinstance(value, list):
            known = list(found.get(name) or [])
            new = [_special(token) for token in value]
            found[name] = known + [token for token in new if str(token) not in set(map(str, known))]
        else:
            found[name] = _special(value) if name != "extra_special_tokens" else value
    if isinstance(found.get("extra_special_tokens"), dict):
        found.setdefault("model_specific_special_tokens", {}).update(
            found.pop("extra_special_tokens")
        )


def _special(value: Any) -> Any:
    """Return a token with its flags, or its text as it is."""
    if not isinstance(value, dict):
        return value
    return AddedToken(
        **{key: each for key, each in value.items() if key not in ("special", "__type")},
        special=True,
    )


def _as_token(value: Any) -> AddedToken:
    if isinstance(value, AddedToken):
        return value
    return AddedToken(**{key: each for key, each in value.items() if key != "__type"})


def revived(value: Any) -> Any:
    """Return tokens that were written as dicts, anywhere in it."""
    if isinstance(value, dict):
        if value.get("__type") == "AddedToken":
            return _as_token(value)
        return {key: revived(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [revived(each) for each in value]
    return value
