"""Bytes on each device, by purpose; activations are those that autograd keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from .decoder import Decoder
from .job import Job
from .optimizers import optimizer_state, steps_in_backward


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device as the backward pass begins, which is when most is needed."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    """Logits and their gradient, while the loss is computed."""
    buffers: float
    """Buffers of the current collective."""

    @property
    def total(self) -> float:
        """All that is on the device."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.buffers
        )


def memory(job: Job) -> Memory:
    """Return the memory of a training, see `docs/user/scaling.md`."""
    width = job.number_format.weights
    state = optimizer_state(job.optim, job.model, width=width, rank=job.optim_rank)
    return Memory(
        parameters=width * job.own_parameters / job.shards,
        gradients=gradient_bytes(job),
        optimizer=state / (job.shards * job.tp),
        activations=activation_bytes(job),
        logits=8 * job.tokens * job.model.vocabulary / job.tp if job.model.head else 0.0,
        buffers=_buffers(job),
    )


def gradient_bytes(job: Job) -> float:
    """Return the bytes of gradients; FSDP keeps whole ones until the last micro-batch."""
    width = job.number_format.weights
    if not job.sharded:
        return width * (largest_group(job) if steps_in_backward(job.optim) else job.own_parameters)
    waits = job.accumulation > 1 and not job.sync_each_batch
    waiting = job.number_format.compute * job.own_parameters if waits else 0.0
    return width * job.own_parameters / job.shards + waiting


def largest_group(job: Job) -> float:
    """Return the parameters that are gathered at once at most: of a layer, or of all that is
    outside of the layers.
    """
    return max(job.model.layer_parameters, job.model.root_parameters) / job.tp


def _buffers(job: Job) -> float:
    """DDP: buckets like the gradients. FSDP: the gathered root and two layers, and the largest
    whole gradients.
    """
    if job.data_parallel == 1:
        return 0.0
    if not job.sharded:
        return job.number_format.weights * job.own_parameters
    gathered = job.own_parameters
    if job.fsdp == "full_shard":
        layers = min(2, job.model.layers) * job.model.layer_parameters
        gathered = (job.model.root_parameters + layers) / job.tp
    return job.number_format.compute * (gathered + largest_group(job))


def activation_bytes(job: Job) -> float:
    """Return the peak of activations of a micro-batch as the backward pass begins."""
    layer = layer_bytes(job)
    root = kept_bytes(job, 1, checkpointing=False) - layer
    if job.checkpointing:
        return root + job.model.layers * input_bytes(job) + layer
    return root + job.model.layers * layer


def layer_bytes(job: Job) -> int:
    """Return the bytes of activations that a layer keeps for a micro-batch."""
    return kept_bytes(job, 2, checkpointing=False) - kept_bytes(job, 1, checkpointing=False)


def input_bytes(job: Job) -> int:
    """Return the bytes of the input of a layer, which is all that gradient checkpointing keeps."""
    return kept_bytes(job, 2, checkpointing=True) - kept_bytes(job, 1, checkpointing=True)


@cache
def kept_bytes(job: Job, layers: int, *, checkpointing: bool) -> int:
    """Return the bytes that autograd keeps of a forward pass, without the weights; no number is
    computed.

    Args:
        job: the training.
        layers: how many of the model's layers it has.
        checkpointing: keep only the inputs of layers.
    """
    kept: dict[StorageWeakRef, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[StorageWeakRef(tensor.untyped_storage())] = tensor
        return tensor

    # FSDP casts whole layers, autocast casts the inputs and weights of matrix products.
    precision = job.number_format
    is_mixed = precision.compute < precision.weights
    is_float32 = precision.compute == 4 or (is_mixed and not job.sharded)
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if is_float32 else torch.bfloat16)
    try:
        with FakeTensorMode():
            decoder = Decoder(job.model, layers, job.tp, job.attention == "eager")
            ids = torch.zeros(job.batch, job.sequence, dtype=torch.long, device="cpu")
            with (
                torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
                torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed and is_float32),
            ):
                decoder(ids, checkpointing)
    finally:
        torch.set_default_dtype(default_dtype)

    for weight in decoder.parameters():
        kept.pop(StorageWeakRef(weight.untyped_storage()), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
