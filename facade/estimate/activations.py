"""Bytes that the forward pass of a layer leaves for the backward pass.

After Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), section 4,
whose 34 s b h bytes of a layer with 16-bit numbers these sums give too, with the layers as they are written today in
addition: SwiGLU, fewer heads of keys and values, RMSNorm computed in float32, attention that holds no scores (Dao et
al., "FlashAttention", arXiv:2205.14135), and autocast, which makes copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from .job import Job

_KEPT_BY_ACTIVATION = {"relu": 1, "relu2": 2, "gelu_new": 5, "gelu_fast": 5, "gelu_pytorch_tanh": 2}
"""Tensors of the width of the MLP; 2 for those that torch computes in one go: what went in, and what came out."""


@dataclass(frozen=True)
class Formats:
    """Bytes of numbers in a forward pass."""

    compute: int
    """Of inputs and outputs of matrix products."""
    stream: int
    """Of what layers pass on to each other."""
    copies: bool
    """Autocast: every product makes its own copy of its input, and one of its weight."""


def formats(job: Job) -> Formats:
    """The formats that a job computes in: FSDP and DeepSpeed cast whole layers, otherwise autocast casts products."""
    precision = job.number_format
    if not precision.mixed:
        return Formats(precision.compute, precision.weights, False)
    casts_layers = job.fsdp not in (None, "no_shard") or job.deepspeed is not None
    return Formats(precision.compute, precision.compute if casts_layers else precision.weights, not casts_layers)


def layer_bytes(job: Job) -> float:
    """What one layer keeps on one device, for one micro-batch."""
    numbers = formats(job)
    shared = _outside_of_products(job, numbers) / (job.tp if job.sequence_parallel else 1)
    inside = (_attention(job, numbers) + _mlp(job, numbers)) / job.tp
    weights = numbers.compute * job.model.layer_parameters / job.tp if numbers.copies else 0
    return job.tokens * (shared + inside) + weights


def input_bytes(job: Job) -> float:
    """What goes into a layer, which is all that is kept of it with checkpointing."""
    numbers = formats(job)
    return job.tokens * numbers.stream * job.model.hidden / (job.tp if job.sequence_parallel else 1)


def root_bytes(job: Job) -> float:
    """What is kept after the last layer: the last norm, the input of the head, and the logarithms of probabilities."""
    numbers, model = formats(job), job.model
    weights = numbers.compute * model.vocabulary * model.hidden if numbers.copies and model.head else 0
    return job.tokens * (_norm(job, numbers, readers=1) + saved_logits(job)) + weights / job.tp


def saved_logits(job: Job) -> float:
    """Bytes per token of the logarithms of probabilities, in float32, that the loss keeps."""
    return 4 * job.model.vocabulary / job.tp if job.model.head else 0


def passing_logits(job: Job) -> float:
    """Bytes per token of what is there beside them as the loss is computed: logits, and their gradient."""
    return 8 * job.model.vocabulary / job.tp if job.model.head else 0


def activation_bytes(job: Job) -> float:
    """What the forward pass of a micro-batch leaves behind, at most, as the backward pass begins."""
    layers = job.model.layers
    if job.checkpointing:
        return layers * input_bytes(job) + layer_bytes(job) + root_bytes(job)
    return layers * layer_bytes(job) + root_bytes(job)


def _outside_of_products(job: Job, numbers: Formats) -> float:
    """Bytes per token of both norms, and of the inputs of attention and MLP."""
    attention_readers = 1 if job.model.fused_projection else 3
    mlp_readers = job.model.active_experts * (2 if job.model.gated else 1)
    return _norm(job, numbers, attention_readers) + _norm(job, numbers, mlp_readers)


def _norm(job: Job, numbers: Formats, readers: int) -> float:
    """Bytes per token of a norm: what goes into it, and what comes out, for those that read it."""
    out = (readers if numbers.copies else 1) * numbers.compute
    inputs = numbers.stream if job.model.norm == "layer" else 4 + numbers.stream  # RMSNorm: in float32, and normalised
    return job.model.hidden * (inputs + out)


def _attention(job: Job, numbers: Formats) -> float:
    """Bytes per token of query, key, value, output, and of the scores."""
    model, compute = job.model, numbers.compute
    query, keys = model.query_size, 2 * model.key_size
    if job.attention == "flash":
        concatenated = keys if model.fused_projection and not job.checkpointing else 0  # for a cache of keys and values
        return compute * (2 * query + keys + concatenated) + 4 * model.heads
    in_float32 = model.norm == "rms" or numbers.copies  # models of the age of GPT-2 leave it to the format they have
    scores = model.heads * job.sequence * (4 + compute if compute < 4 and in_float32 else compute)
    return compute * (2 * query + 2 * query) + scores


def _mlp(job: Job, numbers: Formats) -> float:
    """Bytes per token of what is inside of the MLP."""
    model = job.model
    tensors = 4 if model.gated else _KEPT_BY_ACTIVATION.get(model.activation, 2)
    experts_input = model.hidden * (model.active_experts - 1) if model.experts > 1 else 0  # a copy for each expert
    return numbers.compute * (model.active_experts * tensors * model.intermediate + experts_input)
