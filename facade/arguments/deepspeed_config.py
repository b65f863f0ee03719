"""Read and check the configuration of DeepSpeed, and fill it in from the arguments."""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean
from .argument import with_article, wrong_type

if TYPE_CHECKING:
    from .. import TrainingArguments

HIDDEN_SIZE_KEYS: dict[str, float] = {
    "zero_optimization.reduce_bucket_size": 1.0,
    "zero_optimization.stage3_prefetch_bucket_size": 0.9,
    "zero_optimization.stage3_param_persistence_threshold": 0.0,
}
"""Keys whose "auto" is a share of the square of the model's hidden size; 0 stands for ten times the
size.
"""

GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
"""Key that gathers a stage 3 model when it is saved; "auto" becomes True."""

BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

DeepSpeedSource: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""The argument `deepspeed`."""


def read_deepspeed(name: str, value: object) -> object:
    """Check the argument `deepspeed`, see `argument.Reader`; the value is not converted."""
    if not isinstance(value, (str, os.PathLike, Mapping)):
        raise wrong_type(name, value, "a dict, or the path of a JSON file")
    source = cast("DeepSpeedSource", value)
    if not source:
        return source

    config = load_deepspeed(source)
    problems = [*key_problems(config), *_zero_problems(config)]
    if value_at(config, "fp16.enabled") is True and value_at(config, "bf16.enabled") is True:
        problems.append("deepspeed: fp16.enabled and bf16.enabled cannot be combined. Use one.")
    if problems:
        raise ValueError(*problems)
    return source


def load_deepspeed(source: DeepSpeedSource) -> dict[str, object]:
    """Read the argument `deepspeed`: a dict, a JSON file, JSON text, or that in URL-safe base64.

    Returns:
        A new dict.

    Raises:
        ValueError: It is none of these; the message names the reason.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    if os.path.isfile(source):
        return read_object(source, "deepspeed", "settings of DeepSpeed")

    try:
        config: object = json.loads(_text(source))
    except (OSError, ValueError):  # also not UTF-8, not base64
        reason = "the file does not exist, and it is neither JSON nor base64"
        if os.path.isdir(source):
            reason = "it is a folder"
        raise ValueError(
            f"deepspeed={_short(source)}: {reason}. Pass a dict, or the path of a JSON file."
        ) from None
    if not isinstance(config, dict):
        kind = with_article(type(config).__name__)
        raise ValueError(f"deepspeed={_short(source)}: the text is {kind}, not a JSON object.")
    return cast("dict[str, Any]", config)


def with_open_batches(source: DeepSpeedSource | None) -> dict[str, Any] | None:
    """Return a configuration with batch size and accumulation set to "auto".

    Args:
        source: The argument `deepspeed`; None stays None.
    """
    if source is None:
        return None
    config = load_deepspeed(source)
    for key in BATCHES:
        if key in config:
            config[key] = "auto"
    return config


def fill_from_arguments(
    config: dict[str, Any], args: TrainingArguments, processes: int
) -> list[str]:
    """Replace values "auto" that follow from the arguments.

    Args:
        config: Changed in place.
        args: The training arguments.
        processes: The world size.

    Returns:
        One line for each value that contradicts the arguments, with both values.
    """
    mismatches: list[str] = []
    for key, value, argument in _values_of_arguments(args, processes):
        mismatches += fill_auto(config, key, value, argument)
    fill_auto(config, "scheduler.params.warmup_min_lr", 0)
    fill_auto(config, GATHER, True)
    if args.save_on_each_node:
        config.setdefault("checkpoint", {})["use_node_local_storage"] = True
    return mismatches


def fill_from_run(
    config: dict[str, Any], args: TrainingArguments, model: object, steps: int | None
) -> list[str]:
    """Replace values "auto" that depend on the model and the length of the training.

    Args:
        config: Changed in place.
        args: The training arguments.
        model: None keeps values that depend on it.
        steps: Optimizer steps of the training; None keeps values that depend on them.

    Returns:
        One line for each value that contradicts them.
    """
    size = hidden_size(model)
    if size is not None:
        is_stage_3 = value_at(config, "zero_optimization.stage") == 3
        for key, share in HIDDEN_SIZE_KEYS.items():
            if is_stage_3 or not key.startswith("zero_optimization.stage3"):
                value = int(share * size * size) if share else 10 * size
                fill_auto(config, key, value)

    if steps is None:
        return []
    # Newer versions of DeepSpeed refuse 0 steps of warm-up, older ones replaced it by 2.
    warmup_steps = args.get_warmup_steps(steps)
    if value_at(config, "scheduler.params.warmup_num_steps") == "auto":
        warmup_steps = max(1, warmup_steps)
    mismatches = fill_auto(config, "scheduler.params.total_num_steps", steps, "the number of steps")
    mismatches += fill_auto(
        config, "scheduler.params.warmup_num_steps", warmup_steps, "warmup_steps"
    )
    return mismatches


def open_keys(config: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return the dotted keys that are still "auto"."""
    keys: list[str] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            keys += open_keys(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        elif value == "auto":
            keys.append(f"{prefix}{key}")
    return keys


def value_at(config: Mapping[str, object], key: str, default: object = None) -> Any:
    """Return the value of a dotted key."""
    section: Any = config
    for part in key.split("."):
        if not isinstance(section, Mapping) or part not in section:
            return default
        section = cast("Mapping[str, Any]", section)[part]
    return section


def hidden_size(model: object) -> int | None:
    """Return the hidden size in a model's configuration, the largest of several, or None."""
    model_config = getattr(model, "config", None)
    for config in (model_config, getattr(model_config, "text_config", None)):
        size = getattr(config, "hidden_size", None)
        if size is not None:
            return size
        sizes = getattr(config, "hidden_sizes", None)
        if sizes:
            return max(sizes)
    return None


def _values_of_arguments(args: TrainingArguments, processes: int) -> list[tuple[str, object, str]]:
    """Return (key, value, argument) in the order in which contradictions are reported."""
    batch = args.per_device_train_batch_size
    accumulation = args.gradient_accumulation_steps
    # As in transformers, an optimizer or schedule in the configuration has to agree with the
    # arguments: values in both places are compared.
    return [
        ("train_micro_batch_size_per_gpu", batch, "per_device_train_batch_size"),
        ("gradient_accumulation_steps", accumulation, "gradient_accumulation_steps"),
        (
            "train_batch_size",
            processes * batch * accumulation,
            "processes * batch * gradient_accumulation_steps",
        ),
        ("gradient_clipping", args.max_grad_norm, "max_grad_norm"),
        ("optimizer.params.lr", args.learning_rate, "learning_rate"),
        ("optimizer.params.betas", [args.adam_beta1, args.adam_beta2], "[adam_beta1, adam_beta2]"),
        ("optimizer.params.eps", args.adam_epsilon, "adam_epsilon"),
        ("optimizer.params.weight_decay", args.weight_decay, "weight_decay"),
        ("scheduler.params.warmup_max_lr", args.learning_rate, "learning_rate"),
        (
            "fp16.enabled",
            args.mixed_precision == "fp16" or args.fp16_full_eval,
            "fp16 or fp16_full_eval",
        ),
        (
            "bf16.enabled",
            args.mixed_precision == "bf16" or args.bf16_full_eval,
            "bf16 or bf16_full_eval",
        ),
    ]


def fill_auto(
    config: dict[str, Any], key: str, value: object, argument: str | None = None
) -> list[str]:
    """Replace a value "auto".

    Args:
        config: Changed in place.
        key: The dotted key.
        value: The value that follows from the arguments or the run.
        argument: What the value is, for the returned line; None compares nothing.

    Returns:
        One line if the configuration has another value than "auto" and this one.
    """
    path, _, name = key.rpartition(".")
    section = value_at(config, path) if path else config
    if not isinstance(section, dict):
        return []
    settings = cast("dict[str, Any]", section)
    setting = settings.get(name)
    if setting == "auto":
        settings[name] = value
    elif argument is not None and setting is not None and setting != value:
        return [f"{key} is {setting!r} in the configuration, but {argument} is {value!r}"]
    return []


def _text(source: str | os.PathLike[str]) -> str:
    """Return JSON text, decoded from base64 if needed."""
    text = os.fspath(source)
    if text.lstrip().startswith(("{", "[")):
        return text
    return base64.urlsafe_b64decode(text).decode("utf-8")


def _short(source: str | os.PathLike[str]) -> str:
    text = repr(os.fspath(source))
    return text if len(text) <= 80 else f"{text[:77]}..."


PASSED_ON = frozenset(
    """
    activation_checkpointing aio bf16 bfloat16 checkpoint comet comms_logger communication_data_type
    compile csv_monitor data_types dataloader_drop_last disable_allgather disable_python_gc
    dump_state flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op
    gradient_clipping gradient_predivide_factor graph_harvesting log_level memory_breakdown
    optimizer prescale_gradients scheduler seq_parallel_communication_data_type sparse_gradients
    steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size
    train_micro_batch_size_per_gpu use_data_before_expert_parallelism vocabulary_size
    wall_clock_breakdown wandb weight_quantization zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer zero_optimization
    """.split()  # noqa: SIM905 - one name a line would take 45 lines
)
"""Keys at the top that DeepSpeed reads in a training."""


def _is_enabled(section: object) -> bool:
    if isinstance(section, Mapping) and section:
        return bool(cast("Mapping[str, Any]", section).get("enabled", True))
    return bool(cast("object", section))


def _is_several(number: object) -> bool:
    return number not in (0, 1)


def _is_false(value: object) -> bool:
    return value is False


_READS_DATA = "DeepSpeed would read the data, which the Trainer does"
_REMOVED = "DeepSpeed has removed it"
_WRITES_LATER = "a checkpoint has to be complete when it gets its name"

REFUSED: dict[str, tuple[Callable[[object], bool], str]] = {
    "amp": (_is_enabled, "it needs apex; set bf16=True or fp16=True in the arguments"),
    "autotuning": (_is_enabled, "it needs DeepSpeed's own launcher"),
    "checkpoint.writer": (_is_enabled, _WRITES_LATER),
    "compression_training": (
        _is_enabled,
        "the model would have to be prepared by DeepSpeed's init_compression",
    ),
    "curriculum_learning": (_is_enabled, _READS_DATA),
    "data_efficiency": (_is_enabled, _READS_DATA),
    "data_parallel_size": (
        _is_several,
        "it belongs to sequence parallelism, which is not supported",
    ),
    "datastates_ckpt": (_is_enabled, _WRITES_LATER),
    "eigenvalue": (_is_enabled, _REMOVED),
    "elasticity": (
        _is_enabled,
        "it would choose the batch size; trainings resume with other world sizes without it",
    ),
    "expert_parallel": (_is_enabled, "experts would be distributed before the engine exists"),
    "hybrid_engine": (
        _is_enabled,
        "it alternates generation and training, which the Trainer does not",
    ),
    "inference": (_is_enabled, "it belongs to deepspeed.init_inference"),
    "managed_gradient_accumulation": (
        _is_false,
        "the Trainer tells DeepSpeed when a step ends",
    ),
    "nebula": (_is_enabled, _WRITES_LATER),
    "pipeline": (
        _is_enabled,
        "the model would have to be a PipelineModule, which has its own training loop",
    ),
    "progressive_layer_drop": (_is_enabled, _REMOVED),
    "quantize_training": (_is_enabled, _REMOVED),
    "sequence_parallel_size": (_is_several, "sequences are not split under DeepSpeed"),
    "sparse_attention": (_is_enabled, "it belongs to attention modules that only DeepSpeed has"),
    "tensor_parallel.autotp_size": (
        _is_several,
        "split layers with parallelism_config={'tp_size': ...} instead of deepspeed",
    ),
    "zero_optimization.zenflow": (bool, "it has its own steps beside those of the Trainer"),
}
"""Unsupported keys: a test whether the value enables the feature, and the reason."""


def key_problems(config: Mapping[str, object]) -> list[str]:
    """Return one sentence for each unknown or unsupported key of a configuration."""
    known_keys = PASSED_ON | {key.partition(".")[0] for key in REFUSED}
    problems: list[str] = []
    for key in config:
        if key not in known_keys:
            problems.append(
                f"deepspeed: {key!r} is not a key of DeepSpeed's configuration."
                f"{did_you_mean(key, known_keys)} Remove it."
            )
    for key, (is_requested, reason) in REFUSED.items():
        value = value_at(config, key)
        if value is not None and is_requested(value):
            problems.append(f"deepspeed: {key} is not supported: {reason}. Remove it.")
    return problems


def _zero_problems(config: Mapping[str, object]) -> Iterator[str]:
    """Check the required section, the stage, and the devices of offloading."""
    section = config.get("zero_optimization")
    if not isinstance(section, dict):
        yield (
            "deepspeed: the configuration has no section zero_optimization. Add one, such as "
            "{'stage': 2}."
        )
        return
    zero = cast("dict[str, Any]", section)
    stage = zero.get("stage", 0)
    # True and False equal 1 and 0.
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        yield f"deepspeed: zero_optimization.stage={stage!r} must be 0, 1, 2 or 3."
    for part in ("offload_optimizer", "offload_param"):
        if isinstance(zero.get(part), dict):
            yield from _offload_problems(part, zero[part], stage)


def _offload_problems(part: str, section: dict[str, Any], stage: object) -> Iterator[str]:
    device = section.get("device", "none")
    setting = f"zero_optimization.{part}.device={device!r}"
    if device not in ("none", None, "cpu", "nvme"):
        yield f"deepspeed: {setting} is not known. Choose from: none, cpu, nvme."
    elif device in ("cpu", "nvme") and part == "offload_param" and stage != 3:
        yield f"deepspeed: {setting} needs zero_optimization.stage 3, but it is {stage!r}."
    if device == "nvme" and not section.get("nvme_path"):
        yield f"deepspeed: {setting} needs zero_optimization.{part}.nvme_path, a folder."
