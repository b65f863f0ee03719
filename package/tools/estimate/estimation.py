"""Estimate the device memory of a training on fake tensors, and compare strategies.

A decoder with one layer and one with two layers are measured; each further layer adds as much as
the second one.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from ...lightning_modules.optim import (
    OptimizerConfig,
    build_optimizer,
    optimizer_class_and_kwargs,
)
from .decoder import Decoder
from .shape import ModelShape

GIB = 2**30


@dataclass(frozen=True)
class Precision:
    """Bytes per number."""

    weights: int
    """For weights as the optimizer sees them, their gradients, and states of the same dtype."""
    compute: int
    """For matrix products."""


PRECISIONS = {
    "fp32": Precision(4, 4),
    "bf16-mixed": Precision(4, 2),
    "fp16": Precision(4, 2),
    "bf16-true": Precision(2, 2),
}
"""`fp16` and `bf16-mixed` stand for the arguments `fp16` and `bf16`, `bf16-true` for a model that
was loaded in bfloat16.
"""

SHARDING = ("shard_grad_op", "full_shard")
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop")
"""Values of the argument `optim` that need no library, so that they run on fake tensors."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The training to estimate. Numbers are per device unless stated otherwise.

    Raises:
        ValueError: by the constructor, if the devices cannot share the model or its sequences.
    """

    model: ModelShape
    gpus: int = 1
    """Number of all devices."""
    gpu_memory: float = 80
    """Memory of a device in GiB."""
    batch: int = 1
    """Sequences in a micro-batch."""
    sequence: int = 2048
    """Tokens in a sequence."""
    accumulation: int = 1
    """Micro-batches in a step."""
    precision: str = "bf16-mixed"
    """One of `PRECISIONS`."""
    optim: str = "adamw_torch_fused"
    """One of `OPTIMIZERS`."""
    fsdp: str | None = None
    """One of `SHARDING`."""
    tp: int = 1
    """Number of devices that share each layer."""
    cp: int = 1
    """Number of devices that share each sequence, and so each micro-batch."""
    checkpointing: bool = False
    """True to compute the activations of layers again in the backward pass."""

    def __post_init__(self) -> None:
        must_be_divisible = {
            "gpus": self.gpus,
            "heads": self.model.heads,
            "kv_heads": self.model.kv_heads,
            "intermediate": self.model.intermediate,
        }
        for name, number in must_be_divisible.items():
            if number % self.tp:
                raise ValueError(f"tp={self.tp} does not divide {name}={number}.")
        if self.gpus % (self.tp * self.cp):
            raise ValueError(f"cp={self.cp} and tp={self.tp} do not divide gpus={self.gpus}.")
        if self.cp > 1 and self.fsdp is None:
            raise ValueError(
                f"cp={self.cp}: devices that share sequences shard the model, too. Add "
                "--fsdp full_shard."
            )

    @property
    def number_format(self) -> Precision:
        """The bytes per number in this precision."""
        return PRECISIONS[self.precision]

    @property
    def data_parallel(self) -> int:
        """Number of groups of devices that see different samples."""
        return self.gpus // (self.tp * self.cp)

    @property
    def copies(self) -> int:
        """Number of devices that replicate or shard the same part of each layer."""
        return self.gpus // self.tp

    @property
    def shards(self) -> int:
        """Number of devices over which weights, gradients and states are sharded."""
        if self.fsdp is None:
            return 1
        return self.copies

    @property
    def part_length(self) -> int:
        """Number of tokens of a sequence that one device processes, including padding.

        A sequence that `cp` devices share is padded to a multiple of `2 * cp` tokens.
        """
        if self.cp == 1:
            return self.sequence
        return 2 * math.ceil(self.sequence / (2 * self.cp))

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        parts = []
        if self.fsdp is not None:
            parts.append(f"FSDP {self.fsdp}")
        elif self.copies > 1:
            parts.append("DDP")
        elif self.tp == 1:
            parts.append("single device")
        if self.tp > 1:
            parts.append(f"TP {self.tp}")
        if self.cp > 1:
            parts.append(f"CP {self.cp}")
        if self.checkpointing:
            parts.append("checkpointing")
        return ", ".join(parts)


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


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The memory of a training."""

    job: Job
    memory: Memory

    @property
    def fits(self) -> bool:
        """Whether the memory fits; a tenth is reserved for driver, kernels and fragmentation."""
        return self.memory.total <= 0.9 * GIB * self.job.gpu_memory


def compare(job: Job) -> list[Estimate]:
    """Estimate a training with each strategy that is possible on its devices.

    The strategies are ordered from simple to complex, so that `best` takes the first one that fits.
    The first shards nothing; the next ones shard parameters, gradients and states; then follow the
    same ones with gradient checkpointing, tensor parallelism and context parallelism.

    The micro-batch and the samples of a step are the same for all strategies. Devices that share
    layers or sequences share micro-batches, so they need more accumulation steps.

    Args:
        job: the training; its `fsdp`, `tp`, `cp` and `checkpointing` are not used.
    """
    estimates = []
    for strategy in _strategies(job.gpus):
        try:
            changed = replace(
                job,
                fsdp=strategy.fsdp,
                tp=strategy.tp,
                cp=strategy.cp,
                checkpointing=strategy.checkpointing,
                accumulation=job.accumulation * strategy.tp * strategy.cp,
            )
        except ValueError:
            # A dimension of the model is not divisible by the number of devices.
            continue
        estimates.append(estimate(changed))
    return estimates


def best(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the first estimate that fits, which is the simplest one; None if none fits."""
    for estimate in estimates:
        if estimate.fits:
            return estimate
    return None


class _Strategy(NamedTuple):
    """How the devices share the model, see `Job`."""

    fsdp: str | None = None
    tp: int = 1
    cp: int = 1
    checkpointing: bool = False


def _strategies(gpus: int) -> list[_Strategy]:
    """Return the strategies for a number of devices, from simple to complex."""
    if gpus == 1:
        return [_Strategy(), _Strategy(checkpointing=True)]

    # Devices that share layers or sequences should be in one machine, which usually has 8.
    neighbors = min(8, gpus)
    fsdp_between_nodes = "full_shard" if gpus > neighbors else None
    return [
        _Strategy(),
        _Strategy("shard_grad_op"),
        _Strategy("full_shard"),
        _Strategy(checkpointing=True),
        _Strategy("shard_grad_op", checkpointing=True),
        _Strategy("full_shard", checkpointing=True),
        _Strategy(fsdp_between_nodes, tp=neighbors),
        _Strategy(fsdp_between_nodes, tp=neighbors, checkpointing=True),
        _Strategy("full_shard", cp=neighbors),
        _Strategy("full_shard", cp=neighbors, checkpointing=True),
    ]


def estimate(job: Job) -> Estimate:
    """Estimate the memory of a training on each device, see `docs/user/scaling.md`."""
    width = job.number_format.weights
    own_parameters = count_parameters(job.model) / job.tp

    # FSDP keeps unsharded gradients until the last micro-batch.
    gradients = width * own_parameters / job.shards
    if job.fsdp is not None and job.accumulation > 1:
        gradients += job.number_format.compute * own_parameters

    # The logits and their gradient are float32.
    logits = 2 * 4 * job.batch * job.part_length * job.model.vocabulary / job.tp
    memory = Memory(
        parameters=width * own_parameters / job.shards,
        gradients=gradients,
        optimizer=_state_bytes(job) / (job.shards * job.tp),
        activations=activation_bytes(job),
        logits=logits,
        buffers=_buffer_bytes(job, own_parameters) + _gathered_bytes(job),
    )
    return Estimate(job=job, memory=memory)


def _buffer_bytes(job: Job, own_parameters: float) -> float:
    """Return the bytes of buffers for parameters and gradients."""
    if job.copies == 1:
        return 0.0

    # The buckets of DDP are as large as the gradients.
    if job.fsdp is None:
        return job.number_format.weights * own_parameters

    # `full_shard` gathers the parameters of the root module and of two layers at a time,
    # `shard_grad_op` those of all modules. Both also hold the unsharded gradients of one module at
    # a time; the largest module is counted.
    layer = _count_parameters(job.model, 2) - _count_parameters(job.model, 1)
    root = count_parameters(job.model) - job.model.layers * layer
    gathered = own_parameters
    if job.fsdp == "full_shard":
        gathered = (root + min(2, job.model.layers) * layer) / job.tp
    return job.number_format.compute * (gathered + max(layer, root) / job.tp)


def _gathered_bytes(job: Job) -> float:
    """Return the bytes of the keys and values that attention gathers from the other devices."""
    if job.cp == 1:
        return 0.0
    tokens = job.batch * job.cp * job.part_length
    numbers_of_token = 2 * job.model.kv_heads * job.model.head_size / job.tp
    return job.number_format.compute * tokens * numbers_of_token


def activation_bytes(job: Job) -> float:
    """Return the bytes of activations of a micro-batch at the start of the backward pass."""
    forward = _of_all_layers(job.model, lambda layers: _kept_bytes(job, layers))
    # With checkpointing, the activations of one layer at a time are computed again.
    if job.checkpointing:
        return forward + layer_bytes(job)
    return forward


def layer_bytes(job: Job) -> int:
    """Return the bytes of activations that a layer keeps without checkpointing."""
    without_checkpointing = replace(job, checkpointing=False)
    return _kept_bytes(without_checkpointing, 2) - _kept_bytes(without_checkpointing, 1)


def count_parameters(model: ModelShape) -> int:
    """Return the number of parameters of a model."""
    return _of_all_layers(model, lambda layers: _count_parameters(model, layers))


def _of_all_layers(model: ModelShape, measure: Callable[[int], int]) -> int:
    """Return a quantity for a whole model, extrapolated from decoders with one and two layers.

    Args:
        model: the model, of which only the number of layers is used.
        measure: returns the quantity for a decoder with the given number of layers.
    """
    of_one_layer = measure(1)
    of_further_layer = measure(2) - of_one_layer
    return of_one_layer + (model.layers - 1) * of_further_layer


@cache
def _count_parameters(model: ModelShape, layers: int) -> int:
    """Return the number of parameters of a decoder with some of the model's layers."""
    with torch.device("meta"):
        decoder = Decoder(model, layers)
    return sum(parameter.numel() for parameter in decoder.parameters())


def _state_bytes(job: Job) -> int:
    """Return the bytes of optimizer state for the whole model."""
    dtype = torch.float32 if job.number_format.weights == 4 else torch.bfloat16
    return _of_all_layers(
        job.model, lambda layers: _measure_state(job.model, layers, job.optim, dtype)
    )


@cache
def _measure_state(model: ModelShape, layers: int, optim: str, dtype: torch.dtype) -> int:
    """Return the bytes of an optimizer's state after its first step."""
    with _fake_tensors(dtype):
        decoder = Decoder(model, layers)
        for parameter in decoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer_class, kwargs = optimizer_class_and_kwargs(OptimizerConfig(name=optim), decoder)
        groups = [{"params": list(decoder.parameters())}]
        optimizer = build_optimizer(optimizer_class, kwargs, decoder, groups)
        optimizer.step()

    size = 0
    for state in optimizer.state.values():
        for value in state.values():
            # Step counters are single numbers, and not worth counting.
            if isinstance(value, Tensor) and value.numel() > 1:
                size += value.nbytes
    return size


@cache
def _kept_bytes(job: Job, layers: int) -> int:
    """Return the bytes that autograd saves in a forward pass, excluding the weights.

    Args:
        job: the training.
        layers: number of layers of the decoder.
    """
    saved_tensors: dict[StorageWeakRef, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        saved_tensors[StorageWeakRef(tensor.untyped_storage())] = tensor
        return tensor

    # In mixed precision FSDP computes everything in a layer in bfloat16. Without FSDP, autocast
    # does so for matrix products only.
    precision = job.number_format
    is_mixed = precision.compute < precision.weights
    is_float32 = precision.compute == 4 or (is_mixed and job.fsdp is None)
    with _fake_tensors(torch.float32 if is_float32 else torch.bfloat16):
        decoder = Decoder(job.model, layers, job.tp)
        ids = torch.zeros(job.batch, job.part_length, dtype=torch.long, device="cpu")
        with (
            torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed and is_float32),
        ):
            decoder(ids, job.checkpointing)

    # The weights are already counted as parameters.
    for weight in decoder.parameters():
        saved_tensors.pop(StorageWeakRef(weight.untyped_storage()), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors.values())


@contextmanager
def _fake_tensors(dtype: torch.dtype) -> Iterator[None]:
    """Create tensors in the block without data, and with this dtype by default."""
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_default_dtype(default_dtype)
