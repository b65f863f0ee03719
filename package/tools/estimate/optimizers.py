"""Bytes of optimizer state for a tensor, for the implementation that each `optim` selects."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...lightning_modules.common.suggestions import OptimizerNames
from .shapes import EMBEDDING, MATRIX, ModelShape, TensorShape


@dataclass(frozen=True)
class Tensor:
    """Properties of a tensor that determine the size of its optimizer state."""

    shape: tuple[int, ...]
    size: int
    width: int
    """Bytes of one weight."""
    role: str
    rank: int
    """Of low-rank optimizers."""


_Rule = Callable[[Tensor], float]


def _copies(number: float) -> _Rule:
    """So many tensors like the weight, in its format."""
    return lambda tensor: number * tensor.width * tensor.size


def _floats(number: float) -> _Rule:
    """So many float32 tensors of the size of the weight."""
    return lambda tensor: 4 * number * tensor.size


def _factored(tensor: Tensor) -> float:
    """Return a float32 for each row and each column of a matrix (Shazeer and Stern,
    arXiv:1804.04235).
    """
    if len(tensor.shape) < 2:
        return 4 * tensor.size
    *_, rows, columns = tensor.shape
    matrices = tensor.size // max(1, rows * columns)
    return 4 * matrices * (rows + columns)


def _eight_bits(number: int) -> _Rule:
    """bitsandbytes: a byte and, for each block of 256, a float32; float32 for embeddings and
    tensors below 4,096.
    """

    def rule(tensor: Tensor) -> float:
        if tensor.size < 4096 or tensor.role == EMBEDDING:
            return 4 * number * tensor.size
        return number * (tensor.size + 4 * -(-tensor.size // 256))

    return rule


def _torchao(bits: int) -> _Rule:
    """torchao: two moments in blocks of 256; the weight's format where they do not fit."""

    def rule(tensor: Tensor) -> float:
        if tensor.size < 4096 or tensor.size % 256:
            return 2 * tensor.width * tensor.size
        return 2 * (tensor.size * bits / 8 + 4 * tensor.size / 256 + 4 * 2**bits)

    return rule


def _low_rank(state: _Rule, *, keeps_basis: bool, basis_width: int | None = None) -> _Rule:
    """Return the state of gradients projected to a low rank, and the projection (Zhao et al.,
    arXiv:2403.03507).

    Args:
        state: for the projected gradient.
        keeps_basis: in float32 GaLore keeps the whole of the basis that its projection is a part
            of.
        basis_width: bytes of a number of the projection; by default those of a weight.
    """

    def rule(tensor: Tensor) -> float:
        if tensor.role != MATRIX or len(tensor.shape) != 2:
            return state(tensor)
        small, large = sorted(tensor.shape)
        rank = min(tensor.rank, small)
        width = basis_width or tensor.width
        basis = small if keeps_basis and width == 4 else rank
        # A tall matrix is projected from the right, a wide one from the left.
        projected = (large, rank) if tensor.shape[0] >= tensor.shape[1] else (rank, large)
        inner = Tensor(projected, large * rank, tensor.width, MATRIX, rank)
        return state(inner) + width * small * basis

    return rule


def _with_kahan(tensor: Tensor) -> float:
    """Adam's two moments; in 16 bits a compensation of rounding beside them."""
    return (2 if tensor.width == 4 else 3) * tensor.width * tensor.size


def _on_host(tensor: Tensor) -> float:
    """Nothing: three tensors like the weight are in host memory, and one at a time is on the
    device.
    """
    return 0


_OF_RULES: tuple[tuple[_Rule, str], ...] = (
    (_copies(0), "sgd lomo"),
    (_copies(1), "adagrad rmsprop schedule_free_sgd"),
    (_copies(2), "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused"),
    (_copies(2), "schedule_free_radam schedule_free_adamw"),
    (_floats(1), "lion_32bit paged_lion_32bit rmsprop_bnb rmsprop_bnb_32bit"),
    (_floats(2), "adamw_apex_fused adamw_anyprecision paged_adamw_32bit"),
    (_floats(3), "ademamix paged_ademamix_32bit"),
    (_factored, "adafactor adalomo"),
    (_torchao(4), "adamw_torch_4bit"),
    (_torchao(8), "adamw_torch_8bit"),
    (_eight_bits(1), "lion_8bit paged_lion_8bit rmsprop_bnb_8bit"),
    (_eight_bits(2), "adamw_bnb_8bit adamw_8bit paged_adamw_8bit"),
    (_eight_bits(3), "ademamix_8bit paged_ademamix_8bit"),
    (_low_rank(_copies(2), keeps_basis=True), "galore_adamw galore_adamw_layerwise"),
    (_low_rank(_eight_bits(2), keeps_basis=True), "galore_adamw_8bit galore_adamw_8bit_layerwise"),
    (
        _low_rank(_factored, keeps_basis=True, basis_width=4),
        "galore_adafactor galore_adafactor_layerwise",
    ),
    (_low_rank(_copies(2), keeps_basis=False), "apollo_adamw apollo_adamw_layerwise"),
    (_on_host, "grokadamw"),
    (_with_kahan, "stable_adamw"),
)
_RULES = {name: rule for rule, names in _OF_RULES for name in names.split()}


def state_of_tensor(name: str, tensor: TensorShape, *, width: int, rank: int = 128) -> float:
    """Return the bytes of state of one tensor.

    Args:
        name: a value of `OptimizerNames`.
        tensor: the weight; `tensor.count` is not read.
        width: bytes of one weight.
        rank: of GaLore and APOLLO.
    """
    return _RULES[OptimizerNames(name).value](
        Tensor(tensor.shape, tensor.size, width, tensor.role, rank)
    )


def optimizer_state(name: str, model: ModelShape, *, width: int, rank: int = 128) -> float:
    """Count the bytes of state of all weights, see `state_of_tensor`; GaLore and APOLLO project
    all matrices.
    """
    return sum(
        tensor.count * state_of_tensor(name, tensor, width=width, rank=rank)
        for tensor in model.tensors
    )


def steps_in_backward(name: str) -> bool:
    """Return whether each gradient is applied and freed during the backward pass, one tensor at
    a time.
    """
    return name.endswith("_layerwise") or name in ("lomo", "adalomo")
