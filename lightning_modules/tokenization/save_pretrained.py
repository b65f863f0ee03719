"""Save a tokenizer in a folder."""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

from ..common.local_paths import require_local
from .backend import Backend, settings_lock
from .names import (
    CHAT_TEMPLATE_FILE,
    CONFIG_FILE,
    INSTALL_TRANSFORMERS,
    TOKENIZER_FILE,
    AddedToken,
)

logger = logging.getLogger(__name__)

# Attributes that are not written to tokenizer_config.json, because they are not settings or are
# written to another file.
_LEFT_OUT = (
    "add_bos_token",
    "add_eos_token",
    "added_tokens_decoder",
    "additional_special_tokens",
    "tokenizer_file",
    "vocab_file",
    "files_loaded",
    "name_or_path",
    "special_tokens_map_file",
    "device_map",
    "slow_tokenizer_class",
)


class Saving(Backend):
    """The method `save_pretrained`."""

    init_kwargs: dict[str, Any]
    chat_template: str | None

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *,
        push_to_hub: bool = False,
        **kwargs: object,
    ) -> tuple[str, ...]:
        """Write the files of the tokenizer, which transformers 4 and 5 can read.

        Args:
            save_directory: the folder; created if it is missing.
            push_to_hub: not supported.
            kwargs: other arguments of transformers; not supported.

        Returns:
            the paths of the files.

        Raises:
            NotImplementedError: an argument other than the folder is passed.
        """
        if push_to_hub:
            raise NotImplementedError(
                "save_pretrained(push_to_hub=True): pass the tokenizer to the Trainer as "
                "`processing_class`, which uploads it with the model, or upload the folder with "
                "huggingface_hub.upload_folder."
            )
        unsupported = [name for name, value in kwargs.items() if value not in (None, False)]
        if unsupported:
            raise NotImplementedError(
                f"save_pretrained({unsupported[0]}=...): {INSTALL_TRANSFORMERS}"
            )

        require_local(save_directory, "save_directory")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [self._write(folder / CONFIG_FILE, self._config_text())]
        if self.chat_template is not None:
            paths.append(self._write(folder / CHAT_TEMPLATE_FILE, self.chat_template))
        tokenizer = folder / TOKENIZER_FILE
        with settings_lock():
            self._tokenizer.save(str(tokenizer))
        return (*map(str, paths), str(tokenizer))

    def _config_text(self) -> str:
        """Return the content of tokenizer_config.json."""
        config = copy.deepcopy(self.init_kwargs)

        # Replace arguments by the attributes of the same names, which may have been changed.
        for name in (*config, "model_max_length"):
            if hasattr(self, name):
                config[name] = getattr(self, name)
        config |= self.special_tokens_map
        if self._extra_special_tokens:
            config["extra_special_tokens"] = self.extra_special_tokens
        config.pop("chat_template", None)
        config = {
            name: tokens_as_dicts(value) for name, value in config.items() if name not in _LEFT_OUT
        }
        config["tokenizer_class"] = type(self).__name__
        return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def _write(self, path: Path, text: str) -> Path:
        """Write a text to a file, and return the path."""
        path.write_text(text, encoding="utf-8")
        logger.info("Wrote %s", path)
        return path


def tokens_as_dicts(value: object) -> Any:
    """Replace the tokens in nested values by dicts that describe them."""
    if isinstance(value, AddedToken):
        flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        return {**{flag: getattr(value, flag) for flag in flags}, "__type": "AddedToken"}
    if isinstance(value, dict):
        return {key: tokens_as_dicts(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [tokens_as_dicts(part) for part in value]
    return value
