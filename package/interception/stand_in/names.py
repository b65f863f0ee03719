"""Names of the stand-in: all served names, and further names that scripts need.

To offer another name, add it to its module in `_FURTHER_NAMES`, and also to `_TOP_LEVEL` if
`transformers` itself exports it.
"""

from __future__ import annotations

from ..names import SERVED, TOP_LEVEL
from ..targets import targets
from . import availability

_HERE = ".interception.stand_in"
_COLLATORS = (
    "DataCollatorForLanguageModeling DataCollatorForMultipleChoice "
    "DataCollatorForPermutationLanguageModeling DataCollatorForSOP DataCollatorForSeq2Seq "
    "DataCollatorForTokenClassification DataCollatorForWholeWordMask DataCollatorWithFlattening "
    "DefaultDataCollator"
)
_AVAILABLE = " ".join(availability.NAMES)
_STRATEGIES = "PaddingStrategy TensorType"
_FILES = (
    "ADAPTER_CONFIG_NAME ADAPTER_SAFE_WEIGHTS_NAME ADAPTER_WEIGHTS_NAME CONFIG_NAME "
    "GENERATION_CONFIG_NAME SAFE_WEIGHTS_INDEX_NAME SAFE_WEIGHTS_NAME WEIGHTS_INDEX_NAME "
    "WEIGHTS_NAME"
)
_LOGGING = (
    "disable_default_handler disable_progress_bar disable_propagation enable_default_handler "
    "enable_explicit_format enable_progress_bar enable_propagation get_logger get_verbosity "
    "log_levels set_verbosity set_verbosity_debug set_verbosity_error set_verbosity_info "
    "set_verbosity_warning warning_once"
)
_LEVELS = "CRITICAL DEBUG ERROR FATAL INFO NOTSET WARN WARNING"
_CHECKS = {f"{_HERE}.availability": _AVAILABLE, ".callbacks.default_progress": "is_in_notebook"}
_UTILS = {
    **_CHECKS,
    f"{_HERE}.versions": "check_min_version send_example_telemetry",
    ".lightning_modules.tokenization.names": _STRATEGIES,
    ".facade.arguments.enums": "ExplicitEnum",
    ".lightning_modules.common.file_names": _FILES,
    ".lightning_modules.models.model_output": "ModelOutput",
    ".lightning_modules.models.signatures": "can_return_loss find_labels",
}

# In the form of `_SERVED` in `interception/names.py`. A module without names can still be imported.
_FURTHER_NAMES: dict[str, dict[str, str]] = {
    "": {},
    "data": {},
    "data.data_collator": {
        ".lightning_modules": _COLLATORS,
        ".lightning_modules.data.collators": "DataCollatorMixin",
    },
    "debug_utils": {".facade.arguments.enums": "ExplicitEnum"},
    "integrations.integration_utils": {
        ".callbacks": "get_reporting_integration_callbacks=reporting_callbacks"
    },
    "file_utils": _UTILS,
    "models": {},
    "models.auto": {".lightning_modules.tokenization": "AutoTokenizer"},
    "models.auto.tokenization_auto": {".lightning_modules.tokenization": "AutoTokenizer"},
    "tokenization_utils_base": {
        ".lightning_modules.tokenization": (
            "AddedToken BatchEncoding PreTrainedTokenizerBase TruncationStrategy"
        ),
        ".lightning_modules.tokenization.names": _STRATEGIES,
    },
    "tokenization_utils_fast": {".lightning_modules.tokenization": "PreTrainedTokenizerFast"},
    "tokenization_utils_tokenizers": {".lightning_modules.tokenization": "PreTrainedTokenizerFast"},
    "trainer_utils": {".facade.arguments.enums": "ExplicitEnum"},
    "utils": _UTILS,
    "utils.generic": {
        ".lightning_modules.tokenization.names": _STRATEGIES,
        ".facade.arguments.enums": "ExplicitEnum",
        ".lightning_modules.models.model_output": "ModelOutput",
        ".lightning_modules.models.signatures": "can_return_loss find_labels",
    },
    "utils.import_utils": _CHECKS,
    "utils.logging": {f"{_HERE}.logging": _LOGGING, "logging": _LEVELS},
    "utils.versions": {f"{_HERE}.versions": "require_version"},
}
_FURTHER_TARGETS = {module: targets(names) for module, names in _FURTHER_NAMES.items()}
_FURTHER_TARGETS["utils"]["logging"] = "transformers.utils.logging:"

_TOP_LEVEL = {
    "data.data_collator": _COLLATORS,
    "models.auto.tokenization_auto": "AutoTokenizer",
    "tokenization_utils_base": "AddedToken BatchEncoding PreTrainedTokenizerBase",
    "tokenization_utils_fast": "PreTrainedTokenizerFast",
    "utils": (
        "TensorType is_apex_available is_av_available is_bitsandbytes_available "
        "is_datasets_available is_faiss_available is_matplotlib_available "
        "is_safetensors_available is_scipy_available is_sentencepiece_available "
        "is_sklearn_available is_speech_available is_timm_available is_tokenizers_available "
        "is_torch_available is_torch_mps_available is_torch_npu_available is_torch_xla_available "
        "is_torch_xpu_available is_torchvision_available is_vision_available"
    ),
}


def _names_of_stand_in() -> dict[str, dict[str, str]]:
    """Return the names of each module of the stand-in with their targets; see `STAND_IN`."""
    modules: dict[str, dict[str, str]] = {}
    for module in [*SERVED, *_FURTHER_TARGETS]:
        modules[module] = {**SERVED.get(module, {}), **_FURTHER_TARGETS.get(module, {})}

    # The package looks up each name in the module that has it, so that both have the same object.
    package_names = {name: f"transformers.{module}:{name}" for name, module in TOP_LEVEL.items()}
    for module, names in _TOP_LEVEL.items():
        for name in names.split():
            package_names[name] = f"transformers.{module}:{name}"
    package_names["logging"] = "transformers.utils.logging:"
    modules[""] = package_names

    # `transformers.integrations` does the same.
    integration_names = {}
    for module in ("integrations.deepspeed", "integrations.integration_utils"):
        for name in modules[module]:
            integration_names[name] = f"transformers.{module}:{name}"
    modules["integrations"] = integration_names
    return modules


STAND_IN = _names_of_stand_in()
"""Names of each module of the stand-in with their targets.

Names of modules are relative to `transformers`; "" is the package itself.
"""
