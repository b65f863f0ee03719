"""Read the configuration of DeepSpeed, fill it in from the arguments, compare it with them, and
check its keys.
"""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...lightning_modules.common.json_files import read_object
from ...lightning_modules.common.suggestions import did_you_mean
from .argument import wrong_type

HIDDEN_SIZE_KEYS: dict[str, float] = {
    "zero_optimization.reduce_bucket_size": 1.0,
    "zero_optimization.stage3_prefetch_bucket_size": 0.9,
    "zero_optimization.stage3_param_persistence_threshold": 0.0,
}
"""Keys whose "auto" follows from the model's hidden size: the share of its square; 0 stands for
ten times the size.
"""

GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
"""Key that gathers a stage 3 model when it is saved; "auto" becomes True."""

BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

_MISSING = object()


def read_deepspeed(name: str, value: Any) -> Any:
    """Check the argument `deepspeed`, see `argument.Reader`; the value stays what it is."""
    if not isinstance(value, (str, os.PathLike, Mapping)):
        raise wrong_type(name, value, "a dict, or the path of a JSON file")
    if not value:
        return value
    config = load_deepspeed(value)
    faults = [*key_faults(config), *_zero_faults(config)]
    if value_at(config, "fp16.enabled") is True and value_at(config, "bf16.enabled") is True:
        faults.append("deepspeed: fp16.enabled and bf16.enabled exclude each other. Keep one.")
    if faults:
        raise ValueError(*faults)
    return value


def load_deepspeed(source: Any) -> dict[str, Any]:
    """Read the argument `deepspeed`: a dict, the path of a JSON file, JSON text, or that in
    URL-safe base64.

    Returns:
        A new dict.

    Raises:
        ValueError: it is none of these; names the reason.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    if os.path.isfile(source):
        return read_object(source, "deepspeed", "settings of DeepSpeed")
    try:
        config = json.loads(_text(source))
    except (OSError, ValueError):  # among them what is not UTF-8 or not base64
        why = (
            "is a folder"
            if os.path.isdir(source)
            else "there is no such file, and it is neither JSON nor base64"
        )
        raise ValueError(
            f"deepspeed={_short(source)}: {why}. Pass a dict, or the path of a JSON file."
        ) from None
    if not isinstance(config, dict):
        raise ValueError(
            f"deepspeed={_short(source)}: this text holds a {type(config).__name__}, not a JSON "
            "object."
        )
    return config


def with_open_batches(source: Any) -> dict[str, Any] | None:
    """Return a configuration with batch size and accumulation set to "auto".

    Args:
        source: the argument `deepspeed`; None stays None.
    """
    config = None if source is None else load_deepspeed(source)
    return config and {key: "auto" if key in BATCHES else value for key, value in config.items()}


def fill_from_arguments(config: dict[str, Any], args: Any, processes: int) -> list[str]:
    """Replace values "auto" that follow from the arguments.

    Args:
        config: changed in place.
        args: the training arguments.
        processes: the world size.

    Returns:
        One line for each value that contradicts the arguments, with both values.
    """
    mismatches: list[str] = []
    for key, value, argument in _decided_by_arguments(args, processes):
        mismatches += _fill(config, key, value, argument)
    _fill(config, "scheduler.params.warmup_min_lr", 0)
    _fill(config, GATHER, True)
    if args.save_on_each_node:
        config.setdefault("checkpoint", {})["use_node_local_storage"] = True
    return mismatches


def fill_from_run(config: dict[str, Any], args: Any, model: Any, steps: int | None) -> list[str]:
    """Replace values "auto" that depend on the model and the length of the training.

    Args:
        config: changed in place.
        args: the training arguments.
        model: None leaves values that depend on it.
        steps: optimizer steps of the training; None leaves values that depend on them.

    Returns:
        One line for each value that contradicts them.
    """
    size = hidden_size(model)
    if size is not None:
        stage3 = value_at(config, "zero_optimization.stage") == 3
        for key, share in HIDDEN_SIZE_KEYS.items():
            if stage3 or not key.startswith("zero_optimization.stage3"):
                _fill(config, key, int(share * size * size) if share else 10 * size)
    if steps is None:
        return []
    return [
        *_fill(config, "scheduler.params.total_num_steps", steps, "the number of steps"),
        # Newer versions of DeepSpeed refuse 0, older ones made 2 of it.
        *_fill(
            config,
            "scheduler.params.warmup_num_steps",
            args.get_warmup_steps(steps),
            "warmup_steps",
            lowest=1,
        ),
    ]


def open_keys(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys that are still "auto"."""
    found = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += open_keys(value, f"{prefix}{key}.")
        elif value == "auto":
            found.append(f"{prefix}{key}")
    return found


def value_at(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value of a dotted key."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node


def hidden_size(model: Any) -> int | None:
    """Return the hidden size in a model's configuration, the largest of several; None without
    one.
    """
    config: Any = getattr(model, "config", None)
    for place in (config, getattr(config, "text_config", None)):
        if (size := getattr(place, "hidden_size", None)) is not None:
            return size
        if sizes := getattr(place, "hidden_sizes", None):
            return max(sizes)
    return None


def _decided_by_arguments(args: Any, processes: int) -> list[tuple[str, Any, str]]:
    """Return (key, value, argument) in the order in which contradictions are reported."""
    batch, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
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


def _fill(
    config: Any, key: str, value: Any, argument: str | None = None, *, lowest: Any = None
) -> list[str]:
    """Set a key that is "auto"; return a line if `argument` contradicts the key."""
    *path, last = key.split(".")
    node: Any = value_at(config, ".".join(path)) if path else config
    given = node.get(last, _MISSING) if isinstance(node, dict) else _MISSING
    if given == "auto":
        node[last] = value if lowest is None else max(lowest, value)
    elif argument is not None and given not in (_MISSING, None) and given != value:
        return [f"{key} is {given!r} in the configuration, but {argument} is {value!r}"]
    return []


def _text(source: Any) -> str:
    """Return JSON text, decoded from base64 if needed."""
    source = os.fspath(source)
    plain = source.lstrip().startswith(("{", "["))
    return source if plain else base64.urlsafe_b64decode(source).decode("utf-8")


def _short(source: Any) -> str:
    text = repr(os.fspath(source) if isinstance(source, os.PathLike) else source)
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


def _on(section: Any) -> bool:
    """Return True if a section is enabled."""
    return (
        bool(section.get("enabled", True))
        if isinstance(section, Mapping) and section
        else bool(section)
    )


def _several(number: Any) -> bool:
    return number not in (0, 1)


_READS_DATA = "DeepSpeed would have to read the data, which the Trainer does"
_REMOVED = "DeepSpeed has no code for it any more"

REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "amp": (_on, "it needs apex; set bf16=True or fp16=True in the arguments"),
    "autotuning": (_on, "it needs DeepSpeed's own launcher"),
    "checkpoint.writer": (_on, "a checkpoint has to be written when it gets its name"),
    "compression_training": (
        _on,
        "the model would have to be prepared by DeepSpeed's init_compression",
    ),
    "curriculum_learning": (_on, _READS_DATA),
    "data_efficiency": (_on, _READS_DATA),
    "data_parallel_size": (_several, "it belongs to sequence parallelism, which is not here"),
    "datastates_ckpt": (_on, "a checkpoint has to be written when it gets its name"),
    "eigenvalue": (_on, _REMOVED),
    "elasticity": (
        _on,
        "it would choose the batch size; trainings go on with other processes without it",
    ),
    "expert_parallel": (_on, "experts would be distributed before there is an engine"),
    "hybrid_engine": (_on, "it generates and trains by turns, which the Trainer does not do"),
    "inference": (_on, "it belongs to deepspeed.init_inference"),
    "managed_gradient_accumulation": (
        lambda value: value is False,
        "the Trainer tells DeepSpeed when a step ends",
    ),
    "nebula": (_on, "a checkpoint has to be written when it gets its name"),
    "pipeline": (
        _on,
        "the model would have to be a PipelineModule with a training loop of its own",
    ),
    "progressive_layer_drop": (_on, _REMOVED),
    "quantize_training": (_on, _REMOVED),
    "sequence_parallel_size": (_several, "sequences are not split here"),
    "sparse_attention": (_on, "it belongs to attention modules that only DeepSpeed has"),
    "zero_optimization.zenflow": (bool, "it has steps of its own beside those of the Trainer"),
}
"""Unsupported keys: a test whether the value enables the feature, and the reason."""


def key_faults(config: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each unknown or unsupported key of a configuration."""
    known = PASSED_ON | {key.partition(".")[0] for key in REFUSED}
    said = [
        f"deepspeed: {key!r} is no key of DeepSpeed's configuration.{did_you_mean(key, known)} "
        "Leave it out."
        for key in config
        if key not in known
    ]
    for key, (asks, why) in REFUSED.items():
        value = value_at(config, key)
        if value is not None and asks(value):
            said.append(f"deepspeed: {key} cannot be had here: {why}. Leave it out.")
    return said


def _zero_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Check the required section, the stage, and the devices of offloading."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        yield (
            "deepspeed: the configuration has no section zero_optimization. Add one, such as "
            "{'stage': 2}."
        )
        return
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        yield f"deepspeed: zero_optimization.stage={stage!r} must be 0, 1, 2 or 3."
    for part in ("offload_optimizer", "offload_param"):
        yield from _offload_faults(part, zero.get(part), stage)
    autotp = value_at(config, "tensor_parallel.autotp_size", 1)
    if autotp not in (0, 1):
        instead = "split layers with parallelism_config={'tp_size': ...} in place of deepspeed"
        yield (
            f"deepspeed: tensor_parallel.autotp_size={autotp!r} is not there: leave it out, or "
            f"{instead}."
        )


def _offload_faults(part: str, section: Any, stage: Any) -> Iterator[str]:
    device = section.get("device", "none") if isinstance(section, dict) else "none"
    name = f"zero_optimization.{part}.device={device!r}"
    if device not in ("none", None, "cpu", "nvme"):
        yield f"deepspeed: {name} is not known. Choose from: none, cpu, nvme."
    elif device in ("cpu", "nvme") and part == "offload_param" and stage != 3:
        yield f"deepspeed: {name} needs zero_optimization.stage 3, which is {stage!r}."
    if device == "nvme" and not section.get("nvme_path"):
        yield (
            f"deepspeed: {name} needs zero_optimization.{part}.nvme_path, the folder to keep it in."
        )
