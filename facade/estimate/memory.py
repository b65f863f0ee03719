"""Bytes on each device, and in host memory for it, by what they are for."""

from __future__ import annotations

from dataclasses import dataclass

from .activations import activation_bytes, passing_logits
from .job import Job
from .optimizers import optimizer_state, steps_in_backward


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
    """What is gathered or sent at the moment."""
    host: float
    """In the machine's memory, for this device."""

    @property
    def total(self) -> float:
        """All that is on the device."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.master
            + self.activations
            + self.logits
            + self.buffers
        )


def memory(job: Job) -> Memory:
    """The memory of a training, see `docs/user/scaling.md`."""
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
    """Bytes of a parameter where it is kept: DeepSpeed keeps it in the format it computes in."""
    return job.number_format.compute if job.deepspeed is not None else job.number_format.weights


def gradient_width(job: Job) -> int:
    """Bytes of a gradient where it is kept."""
    return weight_width(job)


def shards_parameters(job: Job) -> bool:
    """Whether a device keeps only its part of the parameters between steps."""
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
    """Whether gathered parameters stay from the forward pass to the backward pass."""
    return job.fsdp in ("shard_grad_op", "hybrid_shard_zero2")
