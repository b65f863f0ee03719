"""Attention of a ring of processes, in a ring of one: what it refuses, and that it leaves
nothing behind.
"""

import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from helpers.devices.cpu_rings import allow_rings_on_cpu
from lightrainer.lightning_modules.common.versions import is_older
from lightrainer.lightning_modules.distributed import ring_attention as module
from lightrainer.lightning_modules.distributed.ring_attention import (
    require_ring_attention,
    ring_attention,
)
from lightrainer.lightning_modules.distributed.ulysses_attention import ulysses_attention

RINGS = not is_older(torch.__version__, "2.10")
KEPT_BY_TORCH = module._torch_module()._replaced_functions if RINGS else {}
with_rings = pytest.mark.skipif(
    not RINGS, reason="context_parallel of this torch version is not supported"
)

BOTH = pytest.mark.parametrize(
    "shared", [pytest.param(ring_attention, marks=with_rings), ulysses_attention]
)


@pytest.fixture
def mesh(tmp_path, monkeypatch):
    if RINGS:
        monkeypatch.setattr(
            module._torch_module(), "custom_ops", dict(module._torch_module().custom_ops)
        )
    allow_rings_on_cpu()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def heads(count: int = 2, length: int = 4) -> torch.Tensor:
    return torch.randn(1, count, length, 8)


@BOTH
def test_ring_attention_is_that_of_the_whole_and_torch_keeps_nothing(mesh, shared):
    query, key, value = (heads().requires_grad_() for _ in range(3))
    before, initial_count = functional.scaled_dot_product_attention, len(KEPT_BY_TORCH)
    expected = torch.autograd.grad(
        before(query, key, value, is_causal=True).square().sum(), (query, key, value)
    )
    tokens = torch.arange(4)[None]
    with shared(mesh, [tokens], [1]) as calls:
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        gradients = torch.autograd.grad(out.square().sum(), (query, key, value))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert tokens.tolist() == [[0, 1, 2, 3]]
    assert calls.count == 1
    assert functional.scaled_dot_product_attention is before
    assert len(KEPT_BY_TORCH) == initial_count


REFUSED = [
    ({"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, "attn_mask"),
    ({"is_causal": False}, "is_causal=False"),
    ({"dropout_p": 0.1}, "dropout_p=0.1"),
    ({"query": heads(length=2)}, r"query of shape \(1, 2, 2, 8\) and key of shape \(1, 2, 4, 8\)"),
]


@BOTH
@pytest.mark.parametrize(
    ("changes", "message"), REFUSED, ids=[message[:20] for _, message in REFUSED]
)
def test_calls_that_would_be_answered_wrongly_are_refused(mesh, shared, changes, message):
    before = functional.scaled_dot_product_attention
    inputs = {"query": heads(), "key": heads(), "value": heads(), "is_causal": True, **changes}
    with (
        pytest.raises(ValueError, match=f"_size above 1: .*{message}"),
        shared(mesh, [torch.arange(4)[None]], [1]),
    ):
        functional.scaled_dot_product_attention(**inputs)
    assert functional.scaled_dot_product_attention is before


@with_rings
def test_rings_on_the_cpu_are_refused_with_what_to_use():
    with pytest.raises(ValueError, match=r"cp_size above 1 needs GPUs, .* Use sp_size"):
        require_ring_attention("cpu")
    require_ring_attention("cuda")


def test_ring_attention_missing_in_torch_names_a_version(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "torch.distributed.tensor.experimental._context_parallel._attention", None
    )
    with pytest.raises(
        NotImplementedError,
        match=r"cp_size above 1: the context_parallel of torch .* is not supported.*Install torch 2\.13",
    ):
        require_ring_attention("cpu")
