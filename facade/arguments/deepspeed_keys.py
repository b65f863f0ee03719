"""The keys of DeepSpeed's configuration: which go to it as they are, and which cannot be had here, with the reason.

DeepSpeed itself passes over keys that it does not know. Those below `zero_optimization` it checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean

PASSED_ON = frozenset(
    [
        "activation_checkpointing",
        "aio",
        "bf16",
        "bfloat16",
        "checkpoint",
        "comet",
        "comms_logger",
        "communication_data_type",
        "compile",
        "csv_monitor",
        "data_types",
        "dataloader_drop_last",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "flops_profiler",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "graph_harvesting",
        "log_level",
        "memory_breakdown",
        "optimizer",
        "prescale_gradients",
        "scheduler",
        "seq_parallel_communication_data_type",
        "sparse_gradients",
        "steps_per_print",
        "tensor_parallel",
        "tensorboard",
        "timers",
        "torch_autocast",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    ]
)
"""Keys at the top that DeepSpeed reads in a training."""


def _on(section: Any) -> bool:
    """Whether a section does anything: most say so."""
    return bool(section.get("enabled", True)) if isinstance(section, Mapping) and section else bool(section)


def _several(number: Any) -> bool:
    return number not in (None, 0, 1)


_READS_DATA = "DeepSpeed would have to read the data, which the Trainer does"
_REMOVED = "DeepSpeed has no code for it any more"

REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "amp": (_on, "it needs apex; set bf16=True or fp16=True in the arguments"),
    "autotuning": (_on, "it needs DeepSpeed's own launcher"),
    "checkpoint.writer": (_on, "a checkpoint has to be written when it gets its name"),
    "compression_training": (_on, "the model would have to be prepared by DeepSpeed's init_compression"),
    "curriculum_learning": (_on, _READS_DATA),
    "data_efficiency": (_on, _READS_DATA),
    "data_parallel_size": (_several, "it belongs to sequence parallelism, which is not here"),
    "datastates_ckpt": (_on, "a checkpoint has to be written when it gets its name"),
    "eigenvalue": (_on, _REMOVED),
    "elasticity": (
        _on,
        "it would choose the batch size; trainings of DDP and FSDP go on with other processes without it",
    ),
    "expert_parallel": (_on, "experts would be dealt out before there is an engine"),
    "hybrid_engine": (_on, "it generates and trains by turns, which the Trainer does not do"),
    "inference": (_on, "it belongs to deepspeed.init_inference"),
    "managed_gradient_accumulation": (lambda value: value is False, "the Trainer tells DeepSpeed when a step ends"),
    "nebula": (_on, "a checkpoint has to be written when it gets its name"),
    "pipeline": (_on, "the model would have to be a PipelineModule with a training loop of its own"),
    "progressive_layer_drop": (_on, _REMOVED),
    "quantize_training": (_on, _REMOVED),
    "sequence_parallel_size": (_several, "sequences are not split here"),
    "sparse_attention": (_on, "it belongs to attention modules that only DeepSpeed has"),
    "zero_optimization.zenflow": (bool, "it has steps of its own beside those of the Trainer"),
}
"""Key, whether its value asks for anything, and why it cannot be had."""


def key_faults(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the keys of a configuration, one sentence each."""
    top = {key.partition(".")[0] for key in REFUSED}
    known = PASSED_ON | top
    said = [
        f"deepspeed: {key!r} is no key of DeepSpeed's configuration.{did_you_mean(key, known)} Leave it out."
        for key in config
        if key not in known
    ]
    for key, (asks, why) in REFUSED.items():
        value = _at(config, key)
        if value is not None and asks(value):
            said.append(f"deepspeed: {key} cannot be had here: {why}. Leave it out.")
    return said


def _at(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
