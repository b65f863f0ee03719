"""Find the files of a tokenizer, in a folder or on the Hub, and read the arguments in them."""

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
    INSTALL_TRANSFORMERS,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    AddedToken,
)

logger = logging.getLogger(__name__)

MODEL_FILE = "config.json"

_OPTIONAL_FILES = (
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    ADDED_TOKENS_FILE,
    CHAT_TEMPLATE_FILE,
    MODEL_FILE,
)
_PATTERNS_TO_DOWNLOAD = (TOKENIZER_FILE, *_OPTIONAL_FILES, f"{CHAT_TEMPLATE_FOLDER}/*.jinja")
# Files of older tokenizers, which only transformers converts to a tokenizer.json.
_OLDER_FILES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@dataclass(frozen=True)
class TokenizerFiles:
    """The existing files of a tokenizer."""

    tokenizer: Path
    """The path of tokenizer.json."""
    is_local: bool = True
    """True for files in a local folder; False for a single file, and for a repository."""
    optional: dict[str, Path] = field(default_factory=dict)
    """The paths of the other files by name: settings, tokens, the chat template."""
    has_several_templates: bool = False
    """Whether there is a folder of additional chat templates."""

    def content(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file, see `settings_file`; empty if the file is missing."""
        if name not in self.optional:
            return {}
        return settings_file(self.optional[name])


def files_of(name: str, subfolder: str | None = None, **hub: Any) -> TokenizerFiles:
    """Find the files of a tokenizer, on the Hub if `name` is neither a file nor a folder.

    Args:
        name: a path, or `owner/name` of a repository.
        subfolder: the folder with the files, inside the folder or repository.
        hub: the options of a download: `cache_dir`, `force_download`, `local_files_only`, `token`
            and `revision`.

    Raises:
        OSError: the files were not found; the message says how to get them.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return TokenizerFiles(path, is_local=False)
    is_local = path.is_dir()
    if not is_local:
        path = _download(name, subfolder, **hub)
    if subfolder:
        path = path / subfolder
    return _files_in_folder(path, name, is_local)


def _files_in_folder(folder: Path, name: str, is_local: bool) -> TokenizerFiles:
    """Return the files in a folder.

    Raises:
        OSError: the folder has no tokenizer.json.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        raise _missing_error(folder, name)
    optional: dict[str, Path] = {}
    for file_name in _OPTIONAL_FILES:
        path = folder / file_name
        if path.is_file():
            optional[file_name] = path
    has_several_templates = (folder / CHAT_TEMPLATE_FOLDER).is_dir()
    return TokenizerFiles(folder / TOKENIZER_FILE, is_local, optional, has_several_templates)


def _missing_error(folder: Path, name: str) -> OSError:
    """Return the error for a folder without a tokenizer.json."""
    older_files = [file_name for file_name in _OLDER_FILES if (folder / file_name).is_file()]
    present = "nor an older file of a tokenizer"
    if older_files:
        present = f"but {', '.join(older_files)}, which lightrainer cannot read"
    return OSError(
        f"{name!r} has no {TOKENIZER_FILE}, {present}. Pass the folder or repository that "
        "`tokenizer.save_pretrained` wrote, or its `subfolder`. transformers converts older "
        f"files: AutoTokenizer.from_pretrained({name!r}).save_pretrained(folder)."
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
    """Download missing files of a repository, and return its folder in the local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import HFValidationError

    if cache_dir is not None:
        cache_dir = os.fspath(cache_dir)
    patterns: list[str] = list(_PATTERNS_TO_DOWNLOAD)
    if subfolder:
        patterns = [f"{subfolder}/{pattern}" for pattern in patterns]
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=secret(token),
            allow_patterns=patterns,
            library_name="lightrainer",
        )
    except HFValidationError as error:
        raise OSError(
            f"{name!r} is neither a file nor a folder, nor can it be a repository on the Hub."
        ) from error
    except Exception as error:
        # Mask the token, which the message may contain.
        strip_token(error, token)
        raise OSError(f"The tokenizer {name!r} is not available from the Hub: {error}") from error
    return Path(folder)


def arguments_of(
    files: TokenizerFiles, name: str, attributes: list[str], user_arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the tokenizer class that the files and the user set.

    The files override each other in the same order as in the reference.

    Args:
        files: the existing files.
        name: the argument `name_or_path`.
        attributes: the attributes of the class for special tokens.
        user_arguments: the arguments of the user, which override those in the files.

    Returns:
        Keyword arguments, including `tokenizer_object` and `added_tokens_decoder`.

    Raises:
        OSError: a file cannot be read.
        NotImplementedError: there are several chat templates, or an older file has added tokens
            that tokenizer.json lacks.
    """
    # Leave out settings with the name of a secret, because a token of the Hub may have been saved.
    settings = files.content(CONFIG_FILE)
    arguments = {name: value for name, value in settings.items() if not is_secret_name(name)}

    # The post-processor in tokenizer.json already adds BOS and EOS. `init_inputs` holds positional
    # arguments of older subclasses.
    for setting in ("tokenizer_class", "init_inputs", "add_bos_token", "add_eos_token"):
        arguments.pop(setting, None)
    if "chat_template" not in user_arguments:
        arguments |= _chat_template(files, name)
    arguments |= user_arguments
    _rename_extra_tokens(arguments)
    backend = _read_backend(files.tokenizer)

    # Older versions of transformers wrote special tokens to separate files.
    if "added_tokens_decoder" not in arguments:
        _require_added_tokens(files, name, backend)
        _merge_special_tokens(files.content(SPECIAL_TOKENS_FILE), arguments, user_arguments)
    _collect_model_tokens(arguments, attributes)
    arguments |= {"name_or_path": name, "is_local": files.is_local}
    arguments = dicts_as_tokens(arguments)
    added_tokens: dict[int, AddedToken] = {}
    for index, token in arguments.get("added_tokens_decoder", {}).items():
        added_tokens[int(index)] = _as_token(token)
    arguments["added_tokens_decoder"] = added_tokens

    # If a special token is also an added token, use the latter, which has the token's flags.
    added_tokens = added_tokens or backend.get_added_tokens_decoder()
    by_text = {str(token): token for token in added_tokens.values()}
    for attribute in attributes:
        token = arguments.get(attribute)
        if token is not None:
            arguments[attribute] = by_text.get(str(token), token)
    arguments["tokenizer_object"] = backend
    return arguments


def _rename_extra_tokens(settings: dict[str, Any]) -> None:
    """Rename the setting `additional_special_tokens` of transformers 4."""
    if "additional_special_tokens" in settings:
        tokens = settings.pop("additional_special_tokens")
        settings.setdefault("extra_special_tokens", tokens)


def settings_file(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file.

    Raises:
        OSError: the file is not JSON, or does not contain settings; the message names the file and
            the position in it.
    """
    try:
        return read_object(path, keys="settings")
    except ValueError as error:
        raise OSError(
            f"{str(error).rstrip('.')}. Is it complete? Save or download it again."
        ) from None


def _read_backend(path: Path) -> Tokenizer:
    """Read a tokenizer.json.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise OSError(
            f"{path} cannot be read: {error}. Is it complete? If it is newer: "
            "pip install -U tokenizers."
        ) from error


def _chat_template(files: TokenizerFiles, name: str) -> dict[str, str]:
    """Return the argument `chat_template` from its file; empty if the file is missing."""
    if files.has_several_templates:
        raise NotImplementedError(
            f"{name!r} has several chat templates. Pass one of them as `chat_template`, or "
            f"{INSTALL_TRANSFORMERS}"
        )
    if CHAT_TEMPLATE_FILE not in files.optional:
        return {}
    return {"chat_template": files.optional[CHAT_TEMPLATE_FILE].read_text(encoding="utf-8")}


def _collect_model_tokens(arguments: dict[str, Any], attributes: list[str]) -> None:
    """Move the special tokens that only this model has to `model_specific_special_tokens`."""
    model_tokens: dict[str, Any] = {}
    for name in list(arguments):
        has_name_of_token = name.endswith("_token") and name not in attributes
        if has_name_of_token and isinstance(arguments[name], (str, AddedToken)):
            model_tokens[name] = arguments.pop(name)
    if isinstance(arguments.get("extra_special_tokens"), dict):
        model_tokens |= arguments.pop("extra_special_tokens")
    if model_tokens:
        arguments["model_specific_special_tokens"] = model_tokens


def _require_added_tokens(files: TokenizerFiles, name: str, backend: Tokenizer) -> None:
    """Raise if an older file has added tokens that tokenizer.json lacks."""
    for token in files.content(ADDED_TOKENS_FILE):
        if backend.token_to_id(token) is None:
            raise NotImplementedError(
                f"{name!r}: the token {token!r} is in {ADDED_TOKENS_FILE}, but not in "
                f"{TOKENIZER_FILE}. Save the tokenizer again with transformers, or "
                f"{INSTALL_TRANSFORMERS}"
            )


def _merge_special_tokens(
    special_tokens: dict[str, Any], arguments: dict[str, Any], user_arguments: dict[str, Any]
) -> None:
    """Add the tokens of special_tokens_map.json to the arguments, except those of the user."""
    _rename_extra_tokens(special_tokens)
    for name, value in special_tokens.items():
        if user_arguments.get(name):
            continue
        if name != "extra_special_tokens":
            arguments[name] = _special(value)
        elif not isinstance(value, list):
            arguments[name] = value
        else:
            tokens = list(arguments.get(name) or [])
            known_tokens = set(map(str, tokens))
            for token in map(_special, value):
                if str(token) not in known_tokens:
                    tokens.append(token)
            arguments[name] = tokens


def _special(value: object) -> object:
    """Return the special token that a dict describes; anything else is returned unchanged."""
    if not isinstance(value, dict):
        return value
    return _as_token({**value, "special": True})


def _as_token(value: Any) -> AddedToken:
    """Return the token that a dict describes."""
    if isinstance(value, AddedToken):
        return value
    flags = dict(value)
    flags.pop("__type", None)
    return AddedToken(**flags)


def dicts_as_tokens(value: object) -> Any:
    """Replace the dicts that describe tokens in nested values by the tokens."""
    if isinstance(value, dict):
        if value.get("__type") == "AddedToken":
            return _as_token(value)
        return {key: dicts_as_tokens(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [dicts_as_tokens(part) for part in value]
    return value
