"""Bytes on each device, by purpose; the activations are what autograd keeps."""

from __future__ import annotations

import dataclasses
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
    """Bytes on one device at the start of the backward pass, when the most memory is used."""

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
        """The sum of all purposes."""
        return sum(dataclasses.asdict(self).values())


def memory(job: Job) -> Memory:
    """Return the memory of a training, see `docs/user/scaling.md`."""
    width = job.number_format.weights
    state = optimizer_state(job.optim, job.model, width=width, rank=job.optim_rank)
    logits = 0.0
    if job.model.head:
        # The logits and their gradient are float32.
        logits = 2 * 4 * job.own_tokens * job.model.vocabulary / job.tp
    return Memory(
        parameters=width * job.own_parameters / job.shards,
        gradients=gradient_bytes(job),
        optimizer=state / (job.shards * job.tp),
        activations=activation_bytes(job),
        logits=logits,
        buffers=_buffer_bytes(job) + _gathered_bytes(job),
    )


def gradient_bytes(job: Job) -> float:
    """Return the bytes of gradients."""
    width = job.number_format.weights
    if not job.sharded:
        if steps_in_backward(job.optim):
            return width * largest_group(job)
        return width * job.own_parameters

    # FSDP keeps unsharded gradients until the last micro-batch.
    unsharded = 0.0
    if job.accumulation > 1 and not job.sync_each_batch:
        unsharded = job.number_format.compute * job.own_parameters
    return width * job.own_parameters / job.shards + unsharded


def largest_group(job: Job) -> float:
    """Return the parameters of the largest group that FSDP gathers: a layer, or the root."""
    return max(job.model.layer_parameters, job.model.root_parameters) / job.tp


def _buffer_bytes(job: Job) -> float:
    """Return the bytes of communication buffers."""
    if job.copies == 1:
        return 0.0

    # The buckets of DDP are as large as the gradients.
    if not job.sharded:
        return job.number_format.weights * job.own_parameters

    # FSDP gathers the root and two layers, or all of them, and has the unsharded gradients of the
    # largest group.
    gathered = job.own_parameters
    if job.fsdp == "full_shard":
        layers = min(2, job.model.layers) * job.model.layer_parameters
        gathered = (job.model.root_parameters + layers) / job.tp
    return job.number_format.compute * (gathered + largest_group(job))


def _gathered_bytes(job: Job) -> float:
    """Return the bytes of what attention gathers of shared sequences, in one layer."""
    if job.cp > 1:
        return key_value_bytes(job)
    if job.sp > 1:
        return exchanged_bytes(job)
    return 0.0


def key_value_bytes(job: Job) -> float:
    """Return the bytes of the keys and values of a layer, of whole sequences in a micro-batch."""
    keys_and_values = 2 * job.model.kv_heads * job.model.head_size
    numbers_of_token = keys_and_values / job.tp
    tokens = job.parts * job.own_tokens
    return job.number_format.compute * tokens * numbers_of_token


def exchanged_bytes(job: Job) -> float:
    """Return the bytes that a device exchanges by heads in a layer, in a micro-batch.

    These are the queries, keys, values and outputs of its tokens.
    """
    model = job.model
    kv_heads = model.kv_heads

    # Heads of keys and values that cannot be divided among the devices are copied.
    kv_heads_of_device = kv_heads // job.tp
    if kv_heads_of_device % job.sp != 0:
        kv_heads = model.heads
    queries_and_outputs = 2 * model.heads * model.head_size
    keys_and_values = 2 * kv_heads * model.head_size
    numbers_of_token = (queries_and_outputs + keys_and_values) / job.tp
    return job.number_format.compute * job.own_tokens * numbers_of_token


def activation_bytes(job: Job) -> float:
    """Return the bytes of activations of a micro-batch at the start of the backward pass."""
    layer = layer_bytes(job)
    root = kept_bytes(job, 1, checkpointing=False) - layer
    # With checkpointing, the activations of one layer at a time are computed again.
    if job.checkpointing:
        return root + job.model.layers * input_bytes(job) + layer
    return root + job.model.layers * layer


def layer_bytes(job: Job) -> int:
    """Return the bytes of activations that a layer keeps for a micro-batch."""
    return kept_bytes(job, 2, checkpointing=False) - kept_bytes(job, 1, checkpointing=False)


def input_bytes(job: Job) -> int:
    """Return the bytes of a layer's input, which gradient checkpointing keeps."""
    return kept_bytes(job, 2, checkpointing=True) - kept_bytes(job, 1, checkpointing=True)


@cache
def kept_bytes(job: Job, layers: int, *, checkpointing: bool) -> int:
    """Return the bytes that autograd keeps of a forward pass, without the weights.

    Nothing is computed: the tensors are fake.

    Args:
        job: the training.
        layers: number of layers of the decoder.
        checkpointing: keep only the inputs of layers.
    """
    saved_tensors: dict[StorageWeakRef, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        saved_tensors[StorageWeakRef(tensor.untyped_storage())] = tensor
        return tensor

    # FSDP casts whole layers, whereas autocast casts the inputs and weights of matrix products.
    precision = job.number_format
    is_mixed = precision.compute < precision.weights
    is_float32 = precision.compute == 4 or (is_mixed and not job.sharded)
    default_dtype = torch.get_default_dtype()
    dtype = torch.float32 if is_float32 else torch.bfloat16
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode():
            decoder = Decoder(job.model, layers, job.tp, job.attention == "eager")
            ids = torch.zeros(job.batch, job.part_length, dtype=torch.long, device="cpu")
            with (
                torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
                torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed and is_float32),
            ):
                decoder(ids, checkpointing)
    finally:
        torch.set_default_dtype(default_dtype)

    # The weights are counted as parameters.
    for weight in decoder.parameters():
        saved_tensors.pop(StorageWeakRef(weight.untyped_storage()), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors.values())
