"""Write a tokenizer to a folder and to the Hub."""

from __future__ import annotations

import copy
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from ..common.local_paths import require_local
from ..common.redaction import bare, secret, secret_values
from .backend import Backend, turns
from .names import CHAT_TEMPLATE_FILE, CHAT_TEMPLATE_FOLDER, CONFIG_FILE, TOKENIZER_FILE, AddedToken

logger = logging.getLogger(__name__)

# No settings, or written to another file.
_LEFT_OUT = (
    *("add_bos_token", "add_eos_token", "added_tokens_decoder", "additional_special_tokens", "tokenizer_file"),
    *("vocab_file", "files_loaded", "name_or_path", "special_tokens_map_file", "device_map", "slow_tokenizer_class"),
)


class Saving(Backend):
    """`save_pretrained` and `push_to_hub`."""

    init_kwargs: dict[str, Any]
    init_inputs: tuple[Any, ...]
    chat_template: str | dict[str, str] | None

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
        push_to_hub: bool = False,
        save_jinja_files: bool = True,
        **kwargs: Any,
    ) -> tuple[str, ...]:
        """As `PreTrainedTokenizerFast.save_pretrained`: files that both can read, transformers 4.x too.

        Args:
            save_directory: is made if it is not there.
            legacy_format: True, the files of slow tokenizers, cannot be had.
            filename_prefix: before the names of all files, with a hyphen.
            push_to_hub: upload them.
            save_jinja_files: write chat templates to files of their own rather than into the settings.
            kwargs: for the upload: `repo_id` (by default the folder's name) and what `push_to_hub` takes.

        Returns:
            the paths of the files.
        """
        kwargs = secret_values(kwargs)
        if legacy_format:
            raise ValueError("`legacy_format=True` asks for the files of a slow tokenizer; this is a fast one.")
        require_local(save_directory, "save_directory")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        templates = self._save_templates(folder, prefix) if save_jinja_files else []
        config = self._write(folder / f"{prefix}{CONFIG_FILE}", self._config_text(bool(templates)))
        tokenizer = folder / f"{prefix}{TOKENIZER_FILE}"
        with turns():
            self._tokenizer.save(str(tokenizer))
        paths = (str(config), *map(str, templates), str(tokenizer))
        if push_to_hub:
            _upload(folder, [Path(path).relative_to(folder) for path in paths], folder.absolute().name, **kwargs)
        return paths

    def save_vocabulary(
        self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """As in transformers 4.x: the files of the model alone, such as vocab.json and merges.txt.

        Args:
            save_directory: has to be there.
            filename_prefix: before the names of the files, with a hyphen.
        """
        return tuple(self._tokenizer.model.save(str(save_directory), filename_prefix))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As `PreTrainedTokenizerFast.push_to_hub`: upload the files that `save_pretrained` writes.

        Args:
            repo_id: `owner/name`, or a name in the account of the token; made if it is not there.
            commit_message: by default "Upload tokenizer".
            private: of a new repository.
            token: None takes the one that this machine knows.
            revision: the branch.
            create_pr: as a pull request.
            kwargs: `commit_description`; the rest is for `save_pretrained`.

        Returns:
            the `huggingface_hub.CommitInfo`.

        Raises:
            OfflineModeIsEnabled: a ConnectionError; `HF_HUB_OFFLINE` is set.
            HfHubHTTPError: the Hub refuses.
        """
        token, kwargs = secret(token), secret_values(kwargs)
        upload = {"commit_message": commit_message, "private": private, "token": token, "revision": revision}
        upload |= {"create_pr": create_pr, "commit_description": kwargs.pop("commit_description", None)}
        with tempfile.TemporaryDirectory() as folder:
            paths = self.save_pretrained(folder, **kwargs)
            return _upload(Path(folder), [Path(path).relative_to(folder) for path in paths], repo_id, **upload)

    def _save_templates(self, folder: Path, prefix: str) -> list[Path]:
        own = self.chat_template
        if own is None:
            return []
        default, more = folder / f"{prefix}{CHAT_TEMPLATE_FILE}", folder / f"{prefix}{CHAT_TEMPLATE_FOLDER}"
        paths = []
        for name, template in ({"default": own} if isinstance(own, str) else own).items():
            path = default if name == "default" else more / f"{name}.jinja"
            if path != default and path.resolve().parent != more.resolve():
                raise ValueError(f"The chat template {name!r} cannot be written: its name is no file name.")
            path.parent.mkdir(exist_ok=True)
            paths.append(self._write(path, template))
        return paths

    def _config_text(self, templates_are_saved: bool) -> str:
        config = copy.deepcopy(self.init_kwargs)
        for name in (*config, "model_max_length"):
            if hasattr(self, name):
                config[name] = getattr(self, name)
        config |= self.special_tokens_map
        if self._extra_special_tokens:
            config["extra_special_tokens"] = self.extra_special_tokens
        config.pop("chat_template", None)
        if self.chat_template is not None and not templates_are_saved:
            own = self.chat_template
            named = isinstance(own, dict)
            config["chat_template"] = [{"name": n, "template": t} for n, t in own.items()] if named else own
        if self.init_inputs:
            config["init_inputs"] = list(self.init_inputs)
        config = {name: written(value) for name, value in config.items() if name not in _LEFT_OUT}
        config["tokenizer_class"] = type(self).__name__
        return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def _write(self, path: Path, text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        logger.info("Wrote %s", path)
        return path


def written(value: Any) -> Any:
    """Return tokens as dicts, anywhere in it."""
    if isinstance(value, AddedToken):
        flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        return {**{flag: getattr(value, flag) for flag in flags}, "__type": "AddedToken"}
    if isinstance(value, dict):
        return {key: written(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [written(each) for each in value]
    return value


def _upload(
    folder: Path,
    paths: list[Path],
    name: str,
    *,
    repo_id: str | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="lightrainer")
    try:
        made = api.create_repo(repo_id or name, private=private, exist_ok=True).repo_id
        if revision is not None and not revision.startswith("refs/"):
            api.create_branch(made, branch=revision, exist_ok=True)
        return api.upload_folder(
            repo_id=made,
            folder_path=folder,
            allow_patterns=[path.as_posix() for path in paths],
            commit_message=commit_message or "Upload tokenizer",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    except Exception as error:
        bare(error, token)
        failed = error
    raise failed
