"""`AutoTokenizer`: any tokenizer from its files."""

from __future__ import annotations

import logging
import os
from typing import Any

from ..common.redaction import secret_values
from .families import defaults_of
from .fast import PreTrainedTokenizerFast, hub_options, settings_in
from .files import MODEL_FILE, TokenizerFiles, files_of
from .loading import settings_file
from .names import CONFIG_FILE

logger = logging.getLogger(__name__)


class AutoTokenizer:
    """As `transformers.AutoTokenizer`, for tokenizer.json files: whatever class wrote them, one reads them.

    What the class that is named in the files takes for granted (input names, padding side, special tokens that the
    vocabulary has) is taken for granted here too.
    """

    def __init__(self) -> None:
        raise OSError("AutoTokenizer is not made but asked: AutoTokenizer.from_pretrained(name_or_path).")

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str | os.PathLike[str], *init_inputs: Any, **kwargs: Any
    ) -> PreTrainedTokenizerFast:
        """As `PreTrainedTokenizerFast.from_pretrained`, with the defaults of the class that is named in the files."""
        kwargs = secret_values(kwargs)
        name = os.fspath(pretrained_model_name_or_path)
        files = files_of(name, **hub_options(kwargs))
        settings = settings_in(kwargs)
        config, model = _read(files, CONFIG_FILE), _read(files, MODEL_FILE)
        _warn_what_is_not_run(name, config)
        named = config.get("tokenizer_class") or model.get("tokenizer_class")
        wanted = defaults_of(named, model.get("model_type"))
        made = PreTrainedTokenizerFast._from_files(files, name, init_inputs, settings)
        return _with_defaults(made, wanted) if wanted else made


def _read(files: TokenizerFiles, name: str) -> dict[str, Any]:
    path = files.others.get(name)
    return {} if path is None else settings_file(path)


def _warn_what_is_not_run(name: str, config: dict[str, Any]) -> None:
    if "auto_map" in config:
        logger.warning(
            "%r brings a tokenizer class of its own, which is not run here: the tokenizer is what its tokenizer.json "
            "says. Install transformers if that is not enough.",
            name,
        )


def _with_defaults(made: PreTrainedTokenizerFast, wanted: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Set what neither files nor user have set; a token only if the vocabulary has it."""
    given, vocabulary = made.init_kwargs, made.backend_tokenizer
    missing: dict[str, Any] = {}
    for name, value in wanted.items():
        if not name.endswith("_token"):
            if name not in given:
                setattr(made, name, value)
                given[name] = value  # or it would not be saved
        elif getattr(made, name) is None and name not in given and value and vocabulary.token_to_id(value) is not None:
            missing[name] = value
    if missing:
        made.add_special_tokens(missing)
    return made
