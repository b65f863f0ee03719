"""Bytes of optimizer state, for the implementation that each value of `optim` selects."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
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
    """Rank of low-rank optimizers."""


_Rule = Callable[[Tensor], float]
"""Returns the bytes of state for a tensor."""

_MIN_QUANTIZED_SIZE = 4096
"""Smaller tensors have a state that is not quantized."""
_BLOCK_SIZE = 256
"""Numbers in a quantized block."""


def _copies(number: int) -> _Rule:
    """Return the rule for a number of tensors of the weight's size and dtype."""
    return lambda tensor: number * tensor.width * tensor.size


def _float32_copies(number: int) -> _Rule:
    """Return the rule for a number of float32 tensors of the weight's size."""
    return lambda tensor: number * 4 * tensor.size


def _factored(tensor: Tensor) -> float:
    """Return the bytes of a float32 for each row and each column of a matrix.

    Source: Shazeer and Stern, arXiv:1804.04235.
    """
    if len(tensor.shape) < 2:
        return 4 * tensor.size
    *_, rows, columns = tensor.shape
    matrices = tensor.size // max(1, rows * columns)
    return 4 * matrices * (rows + columns)


def _bitsandbytes_8bit(number: int) -> _Rule:
    """Return the rule for a number of moments of bitsandbytes.

    They have a byte for each number and a float32 for each block. Those of embeddings and small
    tensors are float32.
    """

    def rule(tensor: Tensor) -> float:
        if tensor.size < _MIN_QUANTIZED_SIZE or tensor.role == EMBEDDING:
            return number * 4 * tensor.size
        blocks = math.ceil(tensor.size / _BLOCK_SIZE)
        return number * (tensor.size + 4 * blocks)

    return rule


def _torchao(bits: int) -> _Rule:
    """Return the rule for two moments of torchao, quantized in blocks.

    They have the weight's dtype if the tensor cannot be divided into blocks.
    """

    def rule(tensor: Tensor) -> float:
        if tensor.size < _MIN_QUANTIZED_SIZE or tensor.size % _BLOCK_SIZE:
            return 2 * tensor.width * tensor.size
        quantized = tensor.size * bits / 8
        scales = 4 * tensor.size / _BLOCK_SIZE
        table = 4 * 2**bits
        return 2 * (quantized + scales + table)

    return rule


def _low_rank(state: _Rule, *, keeps_basis: bool, basis_width: int | None = None) -> _Rule:
    """Return the rule for gradients that are projected to a low rank.

    It counts the state of the projected gradient and the projection. Source: Zhao et al.,
    arXiv:2403.03507.

    Args:
        state: the rule for the projected gradient.
        keeps_basis: in float32 GaLore keeps the full basis, of which the projection is a part.
        basis_width: bytes of a number of the projection; by default those of a weight.
    """

    def rule(tensor: Tensor) -> float:
        if tensor.role != MATRIX or len(tensor.shape) != 2:
            return state(tensor)
        rows, columns = tensor.shape
        small = min(rows, columns)
        large = max(rows, columns)
        rank = min(tensor.rank, small)

        # A tall matrix is projected from the right, a wide one from the left.
        projected_shape = (large, rank) if rows >= columns else (rank, large)
        projected = Tensor(projected_shape, large * rank, tensor.width, MATRIX, rank)

        width = basis_width or tensor.width
        vectors = small if keeps_basis and width == 4 else rank
        return state(projected) + width * small * vectors

    return rule


def _with_kahan_summation(tensor: Tensor) -> float:
    """Return the bytes of Adam's two moments, and of the rounding compensation in 16 bits."""
    tensors = 2 if tensor.width == 4 else 3
    return tensors * tensor.width * tensor.size


def _on_host(tensor: Tensor) -> float:
    """Return 0: the state is in host memory, and that of one tensor at a time on the device."""
    return 0


_OPTIMIZERS_OF_RULES: tuple[tuple[_Rule, str], ...] = (
    (_copies(0), "sgd lomo"),
    (_copies(1), "adagrad rmsprop schedule_free_sgd"),
    (_copies(2), "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused"),
    (_copies(2), "schedule_free_radam schedule_free_adamw"),
    (_float32_copies(1), "lion_32bit paged_lion_32bit rmsprop_bnb rmsprop_bnb_32bit"),
    (_float32_copies(2), "adamw_apex_fused adamw_anyprecision paged_adamw_32bit"),
    (_float32_copies(3), "ademamix paged_ademamix_32bit"),
    (_factored, "adafactor adalomo"),
    (_torchao(4), "adamw_torch_4bit"),
    (_torchao(8), "adamw_torch_8bit"),
    (_bitsandbytes_8bit(1), "lion_8bit paged_lion_8bit rmsprop_bnb_8bit"),
    (_bitsandbytes_8bit(2), "adamw_bnb_8bit adamw_8bit paged_adamw_8bit"),
    (_bitsandbytes_8bit(3), "ademamix_8bit paged_ademamix_8bit"),
    (_low_rank(_copies(2), keeps_basis=True), "galore_adamw galore_adamw_layerwise"),
    (
        _low_rank(_bitsandbytes_8bit(2), keeps_basis=True),
        "galore_adamw_8bit galore_adamw_8bit_layerwise",
    ),
    (
        _low_rank(_factored, keeps_basis=True, basis_width=4),
        "galore_adafactor galore_adafactor_layerwise",
    ),
    (_low_rank(_copies(2), keeps_basis=False), "apollo_adamw apollo_adamw_layerwise"),
    (_on_host, "grokadamw"),
    (_with_kahan_summation, "stable_adamw"),
)
"""The rules, each with the values of `optim` that it applies to."""

_RULES: dict[str, _Rule] = {}
for _rule, _names in _OPTIMIZERS_OF_RULES:
    _RULES.update(dict.fromkeys(_names.split(), _rule))


def state_of_tensor(name: str, tensor: TensorShape, *, width: int, rank: int = 128) -> float:
    """Return the bytes of state of one tensor.

    Args:
        name: a value of `OptimizerNames`.
        tensor: the weight; `tensor.count` is not used.
        width: bytes of a number of the weight.
        rank: the rank of GaLore and APOLLO.
    """
    rule = _RULES[OptimizerNames(name).value]
    return rule(Tensor(tensor.shape, tensor.size, width, tensor.role, rank))


def optimizer_state(name: str, model: ModelShape, *, width: int, rank: int = 128) -> float:
    """Return the bytes of state of all weights, see `state_of_tensor`.

    GaLore and APOLLO are assumed to project all matrices.
    """
    total = 0.0
    for tensor in model.tensors:
        total += tensor.count * state_of_tensor(name, tensor, width=width, rank=rank)
    return total


def steps_in_backward(name: str) -> bool:
    """Return whether each gradient is applied and freed during the backward pass."""
    return name.endswith("_layerwise") or name in ("lomo", "adalomo")
