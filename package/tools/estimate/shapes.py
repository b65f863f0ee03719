"""Shape of a transformer: width, depth and weight tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

EMBEDDING, MATRIX, OTHER = "embedding", "matrix", "other"
"""Roles of a tensor: some optimizers treat embeddings, and matrices of layers, in ways of their own."""


@dataclass(frozen=True)
class TensorShape:
    """Equal tensors among the weights of a model."""

    shape: tuple[int, ...]
    role: str
    """`EMBEDDING`, `MATRIX` or `OTHER`."""
    in_layers: bool
    """True for tensors of the repeated layers; the others are the root, which is gathered with the model."""
    count: int = 1

    @property
    def size(self) -> int:
        """Numbers in one of them."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Dimensions of a model that determine memory and traffic; lengths are numbers of elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    gated: bool = True
    """The MLP multiplies two projections (SwiGLU and its kin); otherwise it has one."""
    norm: str = "rms"
    """`rms`, computed as most models do it: in float32, one operation after the other; or `layer`."""
    activation: str = "silu"
    fused_projection: bool = False
    """One matrix for query, key and value, as in GPT-2."""
    head: bool = True
    """Gives a distribution over the vocabulary for each token."""
    tied: bool = True
    """The head's weights are those of the embedding."""
    active_experts: int = 1
    """MLPs that a token passes in each layer."""
    experts: int = 1
    """MLPs of each layer."""
    tensors: tuple[TensorShape, ...] = ()
    """All weights; where there are none they follow from the numbers above."""
    assumed: str = ""
    """The assumptions made for dimensions that were not given; a sentence."""

    @property
    def query_size(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_size

    @property
    def key_size(self) -> int:
        """Width of the keys, and of the values, of all heads together."""
        return self.kv_heads * self.head_size

    @cached_property
    def weights(self) -> tuple[TensorShape, ...]:
        """All weights."""
        return self.tensors or _usual_tensors(self)

    @cached_property
    def parameters(self) -> int:
        """Numbers in the weights."""
        return sum(tensor.size * tensor.count for tensor in self.weights)

    @cached_property
    def layer_parameters(self) -> int:
        """Numbers in the weights of one layer."""
        return self.in_layers // max(1, self.layers)

    @cached_property
    def in_layers(self) -> int:
        """Numbers in the weights of all layers."""
        return sum(tensor.size * tensor.count for tensor in self.weights if tensor.in_layers)

    @property
    def root_parameters(self) -> int:
        """Numbers in the weights outside of the layers: embeddings, the last norm, the head."""
        return self.parameters - self.in_layers

    @property
    def active_parameters(self) -> int:
        """Numbers in the weights that one token is multiplied with: all, but for experts that it does not pass."""
        projections = 3 if self.gated else 2
        idle = (self.experts - self.active_experts) * projections * self.hidden * self.intermediate
        return self.parameters - self.layers * idle


def _usual_tensors(model: ModelShape) -> tuple[TensorShape, ...]:
    """Return the weights of a decoder without biases; the embedding is the head too, where `tied`."""
    hidden, layers = model.hidden, model.layers

    def matrix(rows: int, columns: int, count: int = 1) -> TensorShape:
        return TensorShape((rows, columns), MATRIX, True, layers * count)

    tensors = [
        TensorShape((model.vocabulary, hidden), EMBEDDING, False),
        matrix(model.query_size, hidden),
        matrix(model.key_size, hidden, 2),
        matrix(hidden, model.query_size),
        matrix(model.intermediate, hidden, (2 if model.gated else 1) * model.experts),
        matrix(hidden, model.intermediate, model.experts),
        TensorShape((hidden,), OTHER, True, 2 * layers),
        TensorShape((hidden,), OTHER, False),
    ]
    if model.experts > 1:
        tensors.append(matrix(model.experts, hidden))
    if model.head and not model.tied:
        tensors.append(TensorShape((model.vocabulary, hidden), MATRIX, False))
    return tuple(tensor for tensor in tensors if tensor.size)


def model_of_size(
    parameters: int | None = None,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    intermediate: int | None = None,
    vocabulary: int | None = None,
) -> ModelShape:
    """Return a decoder as those of today are built (no biases, SwiGLU), with as many parameters as asked for.

    What is not given: layers and width so that the width is 128 times the depth, as it is for models around 7 billion
    parameters, with 12 width^2 parameters a layer (Kaplan et al., "Scaling Laws for Neural Language Models",
    arXiv:2001.08361); heads of 64 or 128 so that
    their number divides by 8; an MLP that makes up the rest.

    Args:
        parameters: how many; None where `layers` and `hidden` say it.
        layers: depth.
        hidden: width.
        heads: attention heads.
        kv_heads: heads of keys and values; by default `heads`.
        intermediate: width of the MLP.
        vocabulary: tokens; 32,000 by default, fewer where that would be more than half of a small model.

    Raises:
        ValueError: neither the number of parameters nor depth and width are given, or they contradict each other.
    """
    if parameters is None and (layers is None or hidden is None):
        raise ValueError("params: give the number of parameters (--params 7e9), or --layers and --hidden.")
    depth, width = _proportions(parameters or 0, layers, hidden)
    tokens = _vocabulary(vocabulary, parameters, width)
    number_of_heads = heads or _usual_heads(width)
    if width % number_of_heads:
        raise ValueError(f"heads={number_of_heads} does not divide hidden={width}.")
    model = ModelShape(
        layers=depth,
        hidden=width,
        heads=number_of_heads,
        kv_heads=kv_heads or number_of_heads,
        head_size=width // number_of_heads,
        intermediate=intermediate or 8 * width // 3,
        vocabulary=tokens,
    )
    if number_of_heads % model.kv_heads:
        raise ValueError(f"kv_heads={kv_heads} does not divide heads={number_of_heads}.")
    given = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": intermediate, "vocabulary": vocabulary}
    if parameters is not None:
        model = _filled_up(model, parameters, intermediate is None)
    assumed = [f"{name} {getattr(model, name):,}" for name, value in given.items() if value is None]
    return replace(model, assumed=f"assumed: {', '.join(assumed)}" if assumed else "")


def _proportions(parameters: int, layers: int | None, hidden: int | None) -> tuple[int, int]:
    if hidden is None:
        depth = layers or (parameters / (12 * 128**2)) ** (1 / 3)
        hidden = _to_multiple(math.sqrt(parameters / (12 * max(1, depth))))
    if layers is None:
        layers = max(1, int(parameters / (12 * hidden**2)))
    return layers, hidden


def _to_multiple(width: float) -> int:
    step = next(step for least, step in ((4000, 1024), (512, 512), (64, 64), (0, 2)) if width >= least)
    return max(1, round(width / step)) * step


def _vocabulary(given: int | None, parameters: int | None, hidden: int) -> int:
    if given is not None:
        return given
    return 32_000 if parameters is None else max(2, min(32_000, parameters // (2 * hidden)))


def _usual_heads(hidden: int) -> int:
    sizes = (128, 64, 32, 16, 8, 4, 2, 1) if hidden >= 4096 else (64, 32, 16, 8, 4, 2, 1)
    heads = 8 if hidden % 8 == 0 else 1
    return hidden // next(size for size in sizes if hidden % (heads * size) == 0)


def _filled_up(model: ModelShape, parameters: int, may_widen: bool) -> ModelShape:
    """Return the model with exactly so many parameters: the MLP is as wide as they allow, the root has the rest."""
    if may_widen:
        of_mlp = 3 * model.hidden * model.layers
        without = model.parameters - of_mlp * model.intermediate
        width = (parameters - without) // of_mlp
        step = 64 if width >= 512 else 8 if width >= 64 else 1  # so that it divides by the usual sizes of `tp`
        model = replace(model, intermediate=max(1, width // step * step))
    rest = parameters - model.parameters
    if rest < 0 or (not may_widen and rest > 0.02 * parameters):
        given = f"layers={model.layers}, hidden={model.hidden}, intermediate={model.intermediate}"
        given += f" and vocabulary={model.vocabulary:,}"
        raise ValueError(f"params={parameters:,}, but {given} are {model.parameters:,}. Leave out one of them.")
    rows, left = divmod(rest, model.hidden)
    more = (TensorShape((rows, model.hidden), MATRIX, False), TensorShape((left,), OTHER, False))
    return replace(model, tensors=(*model.weights, *(tensor for tensor in more if tensor.size)))
