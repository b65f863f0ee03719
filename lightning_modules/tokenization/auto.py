"""`AutoTokenizer`: load any tokenizer from its files, with the defaults of the class they name.

The files of older tokenizers leave input names, the padding side and special tokens to the class,
so the defaults of each class are listed here.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ..common.redaction import secret_values
from .fast import PreTrainedTokenizerFast, pop_hub_options, settings_in
from .files import MODEL_FILE, files_of
from .names import CONFIG_FILE, INSTALL_TRANSFORMERS

logger = logging.getLogger(__name__)


def _tokens(**tokens: str) -> dict[str, str]:
    """Return tokens by attribute name: `pad="[PAD]"` becomes the entry `pad_token`."""
    return {f"{name}_token": token for name, token in tokens.items()}


_BERT = _tokens(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ALBERT = {**_BERT, **_tokens(bos="[CLS]", eos="[SEP]", unk="<unk>", pad="<pad>")}
_DEBERTA = {**_BERT, **_tokens(bos="[CLS]", eos="[SEP]")}
_ROBERTA = _tokens(
    bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>"
)
_GPT2 = _tokens(unk="<|endoftext|>", bos="<|endoftext|>", eos="<|endoftext|>")
_T5 = _tokens(eos="</s>", unk="<unk>", pad="<pad>")
_LLAMA = _tokens(unk="<unk>", bos="<s>", eos="</s>")
_GEMMA = _tokens(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>")

# The order of the names is the order of the columns that a tokenizer returns.
_TYPES_SECOND = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
_TYPES_LAST = {"model_input_names": ["input_ids", "attention_mask", "token_type_ids"]}
_LEFT = {"padding_side": "left"}

# Default settings by the names of classes, without the suffix `Tokenizer`.
_FAMILIES: dict[str, dict[str, Any]] = {
    "Bert Electra ConvBert MobileBert Lxmert LayoutLM DPRQuestionEncoder DPRContextEncoder": {
        **_BERT,
        **_TYPES_SECOND,
    },
    "DistilBert RoFormer Splinter": _BERT,
    "Albert RemBert": _ALBERT,
    "Deberta DebertaV2": {**_DEBERTA, **_TYPES_LAST},
    "Roberta Bart LED Longformer Mvp Barthez Blenderbot Camembert Luke MLuke Nllb XLMRoberta": (
        _ROBERTA
    ),
    "MPNet": {**_ROBERTA, "unk_token": "[UNK]"},
    "GPT2 CodeGen Whisper": _GPT2,
    "GPTNeoX": {**_GPT2, "pad_token": "<|padding|>"},
    "Qwen2 Qwen3_5": {**_GPT2, "bos_token": None, "pad_token": "<|endoftext|>"},
    "T5": _T5,
    "Llama CodeLlama": {**_LLAMA, **_LEFT},
    "Gemma Siglip2": {**_GEMMA, **_LEFT},
}
_BY_CLASS: dict[str, dict[str, Any]] = {}
for _names, _defaults in _FAMILIES.items():
    _BY_CLASS.update(dict.fromkeys(_names.split(), _defaults))

# For each class, the values of `model_type` in config.json whose tokenizers have this class.
_MODELS = {
    "Bert": (
        "bert distilbert electra convbert megatron-bert nezha ernie visual_bert squeezebert "
        "layoutlm qdqbert bros"
    ),
    "MobileBert": "mobilebert",
    "Albert": "albert nystromformer yoso",
    "Deberta": "deberta",
    "DebertaV2": "deberta-v2",
    "Roberta": "roberta bart longformer roberta-prelayernorm data2vec-text ibert",
    "LED": "led",
    "Mvp": "mvp",
    "XLMRoberta": "xlm-roberta xlm-roberta-xl xmod",
    "Camembert": "camembert",
    "MPNet": "mpnet",
    "GPT2": "gpt2 gpt_neo gptj gpt_bigcode opt codegen phi starcoder2 granite",
    "GPTNeoX": "gpt_neox olmo olmo2 mamba mamba2 mpt stablelm rwkv",
    "Qwen2": "qwen2 qwen3 qwen2_moe qwen3_moe",
    "T5": "t5 mt5 umt5 switch_transformers",
    "Llama": "idefics idefics2",
    "CodeLlama": "code_llama",
    "Gemma": "gemma gemma2 gemma3 gemma3_text recurrent_gemma",
    "RoFormer": "roformer",
    "Whisper": "whisper",
}
_BY_MODEL: dict[str, str] = {}
for _name, _models in _MODELS.items():
    _BY_MODEL.update(dict.fromkeys(_models.split(), _name))

_NEED_NO_DEFAULTS = ("PreTrained", "TokenizersBackend")
"""Classes, without their suffixes, whose files contain all settings."""


def defaults_of(tokenizer_class: str | None, model_type: str | None) -> dict[str, Any]:
    """Return the default settings of the class of a tokenizer.

    They are empty if class and model do not match, as the reference then also uses only
    tokenizer.json. For an unknown class they are empty, and a warning is logged.

    Args:
        tokenizer_class: the class named in tokenizer_config.json.
        model_type: the type of the model in config.json.
    """
    name_by_model = _BY_MODEL.get(model_type or "")
    name = name_by_model
    if tokenizer_class is not None:
        name = tokenizer_class.removesuffix("Fast").removesuffix("Tokenizer")
    if name_by_model is not None and name_by_model != name:
        return {}
    described = tokenizer_class or model_type
    if described is not None and name not in _BY_CLASS and name not in _NEED_NO_DEFAULTS:
        logger.warning(
            "The default settings of the tokenizer of %s are unknown here. Pass pad_token, "
            "padding_side and model_input_names if its files leave them out, or %s",
            described,
            INSTALL_TRANSFORMERS,
        )
    return dict(_BY_CLASS.get(name or "", {}))


class AutoTokenizer:
    """Load the tokenizer of a model from a folder or from the Hub.

    Works like `transformers.AutoTokenizer`, for tokenizer.json files of any class.

    The defaults of the class that the files name apply: input names, padding side, and the special
    tokens that are in the vocabulary.
    """

    def __init__(self) -> None:
        raise OSError(
            "AutoTokenizer cannot be instantiated. Call "
            "AutoTokenizer.from_pretrained(name_or_path)."
        )

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> PreTrainedTokenizerFast:
        """Load a tokenizer, with the defaults of the class that its files name.

        Args:
            pretrained_model_name_or_path: a folder, or the name of a repository on the Hub.
            kwargs: settings of the tokenizer, such as `padding_side` and `pad_token`, which
                override those in the files; and options of the download, such as `revision`,
                `token` and `cache_dir`.

        Returns:
            The tokenizer.

        Raises:
            OSError: the tokenizer was not found, or has no tokenizer.json.
        """
        kwargs = secret_values(kwargs)
        name = os.fspath(pretrained_model_name_or_path)
        files = files_of(name, **pop_hub_options(kwargs))
        settings = settings_in(kwargs)
        config = files.content(CONFIG_FILE)
        model = files.content(MODEL_FILE)
        if "auto_map" in config:
            logger.warning(
                "%r has its own tokenizer class, whose code is not run: the tokenizer is read from "
                "its tokenizer.json. Install transformers to run the code.",
                name,
            )
        tokenizer_class = config.get("tokenizer_class") or model.get("tokenizer_class")
        defaults = defaults_of(tokenizer_class, model.get("model_type"))
        tokenizer = PreTrainedTokenizerFast._from_files(files, name, settings)
        _set_defaults(tokenizer, defaults)
        return tokenizer


def _set_defaults(tokenizer: PreTrainedTokenizerFast, defaults: dict[str, Any]) -> None:
    """Set the defaults of settings that neither the files nor the user has set.

    A special token is set only if the vocabulary has it.
    """
    settings = tokenizer.init_kwargs
    missing_tokens: dict[str, object] = {}
    for name, value in defaults.items():
        if name in settings:
            continue
        if not name.endswith("_token"):
            setattr(tokenizer, name, value)
            # `save_pretrained` writes only the settings in `init_kwargs`.
            settings[name] = value
            continue
        is_known = value and tokenizer.backend_tokenizer.token_to_id(value) is not None
        if is_known and getattr(tokenizer, name) is None:
            missing_tokens[name] = value
    if missing_tokens:
        tokenizer.add_special_tokens(missing_tokens)
