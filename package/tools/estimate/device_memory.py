"""Bytes on each device, and in host memory for it, by purpose."""

from __future__ import annotations

from dataclasses import dataclass

from .job import Job
from .optimizers import optimizer_state, steps_in_backward

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
    """Return the formats that a job computes in: FSDP and DeepSpeed cast whole layers, autocast casts products."""
    precision = job.number_format
    if not precision.mixed:
        return Formats(precision.compute, precision.weights, False)
    casts_layers = job.fsdp not in (None, "no_shard") or job.deepspeed is not None
    return Formats(precision.compute, precision.compute if casts_layers else precision.weights, not casts_layers)


def layer_bytes(job: Job) -> float:
    """Return the bytes of activations that a layer keeps on one device for a micro-batch."""
    numbers = formats(job)
    shared = _outside_of_products(job, numbers) / (job.tp if job.sequence_parallel else 1)
    inside = (_attention(job, numbers) + _mlp(job, numbers)) / job.tp
    weights = numbers.compute * job.model.layer_parameters / job.tp if numbers.copies else 0
    return job.tokens * (shared + inside) + weights


def input_bytes(job: Job) -> float:
    """Return the bytes of the input of a layer, which is all that gradient checkpointing keeps."""
    numbers = formats(job)
    return job.tokens * numbers.stream * job.model.hidden / (job.tp if job.sequence_parallel else 1)


def root_bytes(job: Job) -> float:
    """Return the bytes kept after the last layer: last norm, input of the head, log-probabilities."""
    numbers, model = formats(job), job.model
    weights = numbers.compute * model.vocabulary * model.hidden if numbers.copies and model.head else 0
    return job.tokens * (_norm(job, numbers, readers=1) + saved_logits(job)) + weights / job.tp


def saved_logits(job: Job) -> float:
    """Return the bytes per token of the logarithms of probabilities, in float32, that the loss keeps."""
    return 4 * job.model.vocabulary / job.tp if job.model.head else 0


def passing_logits(job: Job) -> float:
    """Return the bytes per token of what is there beside them as the loss is computed: logits, and their gradient."""
    return 8 * job.model.vocabulary / job.tp if job.model.head else 0


def activation_bytes(job: Job) -> float:
    """Return the peak of activations of a micro-batch as the backward pass begins."""
    layers = job.model.layers
    if job.checkpointing:
        return layers * input_bytes(job) + layer_bytes(job) + root_bytes(job)
    return layers * layer_bytes(job) + root_bytes(job)


def _outside_of_products(job: Job, numbers: Formats) -> float:
    """Return the bytes per token of both norms, and of the inputs of attention and MLP."""
    attention_readers = 1 if job.model.fused_projection else 3
    mlp_readers = job.model.active_experts * (2 if job.model.gated else 1)
    return _norm(job, numbers, attention_readers) + _norm(job, numbers, mlp_readers)


def _norm(job: Job, numbers: Formats, readers: int) -> float:
    """Return the bytes per token of a norm: what goes into it, and what comes out, for those that read it."""
    out = (readers if numbers.copies else 1) * numbers.compute
    inputs = numbers.stream if job.model.norm == "layer" else 4 + numbers.stream  # RMSNorm: in float32, and normalised
    return job.model.hidden * (inputs + out)


def _attention(job: Job, numbers: Formats) -> float:
    """Return the bytes per token of query, key, value, output, and of the scores."""
    model, compute = job.model, numbers.compute
    query, keys = model.query_size, 2 * model.key_size
    if job.attention == "flash":
        concatenated = keys if model.fused_projection and not job.checkpointing else 0  # for a cache of keys and values
        return compute * (2 * query + keys + concatenated) + 4 * model.heads
    in_float32 = model.norm == "rms" or numbers.copies  # models of the age of GPT-2 leave it to the format they have
    scores = model.heads * job.sequence * (4 + compute if compute < 4 and in_float32 else compute)
    return compute * (2 * query + 2 * query) + scores


def _mlp(job: Job, numbers: Formats) -> float:
    """Return the bytes per token of what is inside of the MLP."""
    model = job.model
    tensors = 4 if model.gated else _KEPT_BY_ACTIVATION.get(model.activation, 2)
    experts_input = model.hidden * (model.active_experts - 1) if model.experts > 1 else 0  # a copy for each expert
    return numbers.compute * (model.active_experts * tensors * model.intermediate + experts_input)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device as the backward pass begins, which is when most is needed."""

    parameters: float
    gradients: float
    optimizer: float
    master: float
    """float32 weights beside those that are computed with."""
    activations: float
    logits: float
    """Logits and their gradient, while the loss is computed."""
    buffers: float
    """Buffers of the current collective."""
    host: float
    """In the machine's memory, for this device."""

    @property
    def total(self) -> float:
        """All that is on the device."""
        parts = self.parameters, self.gradients, self.optimizer, self.master
        return sum(parts) + self.activations + self.logits + self.buffers


def memory(job: Job) -> Memory:
    """Return the memory of a training, see `docs/user/scaling.md`."""
    weights, gradients, states, master, on_host = _of_weights(job)
    return Memory(
        parameters=weights,
        gradients=gradients,
        optimizer=states,
        master=master,
        activations=activation_bytes(job),
        logits=job.tokens * passing_logits(job),
        buffers=_buffers(job),
        host=on_host,
    )


def _of_weights(job: Job) -> tuple[float, float, float, float, float]:
    """Parameters, gradients, optimizer states and master weights on the device, and what is in host memory."""
    parts = {
        "parameters": weight_width(job) * own_parameters(job) / (job.shards if shards_parameters(job) else 1),
        "gradients": gradient_bytes(job),
    }
    divisor = job.shards * job.tp
    states = optimizer_state(job.optim, job.model, width=_state_width(job), rank=job.optim_rank)
    optimizer, host = states.device / divisor, states.host / divisor
    master = 4 * own_parameters(job) / job.shards if _has_master(job) else 0.0
    if job.fsdp and job.offload:
        host += sum(parts.values()) + optimizer
        return 0.0, 0.0, 0.0, 0.0, host
    if "optimizer" in job.offload:
        host += optimizer + master + 4 * own_parameters(job) / job.shards  # gradients go there in float32
        optimizer, master = 0.0, 0.0
        if (job.deepspeed or 0) >= 2:
            parts["gradients"] = 0.0
    if "parameters" in job.offload:
        host += parts["parameters"]
        parts["parameters"] = 0.0
    return parts["parameters"], parts["gradients"], optimizer, master, host


def own_parameters(job: Job) -> float:
    """Parameters of a whole model, or of this device's part of each layer."""
    return job.model.parameters / job.tp


def weight_width(job: Job) -> int:
    """Return the bytes of a parameter where it is kept: DeepSpeed keeps it in the format it computes in."""
    return job.number_format.compute if job.deepspeed is not None else job.number_format.weights


def gradient_width(job: Job) -> int:
    """Return the bytes of a gradient where it is kept."""
    return weight_width(job)


def shards_parameters(job: Job) -> bool:
    """Return whether a device keeps only its shard of the parameters between steps."""
    return job.fsdp not in (None, "no_shard") or job.deepspeed == 3


def gradient_bytes(job: Job) -> float:
    """Gradients on one device: whole ones where they are not exchanged before the last micro-batch."""
    own = own_parameters(job)
    if steps_in_backward(job.optim) and not job.sharded:
        return gradient_width(job) * largest_group(job)
    if job.deepspeed is not None:
        return gradient_width(job) * own / (job.shards if job.deepspeed >= 2 else 1)
    if not shards_parameters(job):
        return gradient_width(job) * own
    waiting = job.number_format.compute * own if job.accumulation > 1 and not job.sync_each_batch else 0.0
    return gradient_width(job) * own / job.shards + waiting


def largest_group(job: Job) -> float:
    """Parameters of the largest group that is gathered at once: a layer, or all that is outside of the layers."""
    return max(job.model.layer_parameters, job.model.root_parameters) / job.tp


def _has_master(job: Job) -> bool:
    """DeepSpeed computes in 16 bits beside float32 weights; autocast casts the float32 weights themselves."""
    return job.deepspeed is not None and job.number_format.compute < 4


def _state_width(job: Job) -> int:
    return 4 if _has_master(job) else job.number_format.weights


def _buffers(job: Job) -> float:
    """DDP: buckets like the gradients. Sharded: the gathered root and two layers, and a layer's whole gradients."""
    if job.data_parallel == 1:
        return 0.0
    width, model = job.number_format.compute, job.model
    if job.deepspeed is not None and job.deepspeed < 3:
        return min(5e8, own_parameters(job)) * gradient_width(job)  # DeepSpeed's buckets hold 5e8 numbers
    if not shards_parameters(job):
        return gradient_width(job) * own_parameters(job)
    layer = model.layer_parameters / job.tp
    if keeps_gathered(job):
        gathered = own_parameters(job)
    else:
        gathered = model.root_parameters / job.tp + min(2, model.layers) * layer
    return width * (gathered + largest_group(job))


def keeps_gathered(job: Job) -> bool:
    """Return whether gathered parameters stay from the forward to the backward pass."""
    return job.fsdp in ("shard_grad_op", "hybrid_shard_zero2")
