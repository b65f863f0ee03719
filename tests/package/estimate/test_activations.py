"""Bytes kept for the backward pass, estimated against the tensors that autograd saves of a real
model.
"""

import contextlib
import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lightrainer.tools.estimate import Job, ModelShape, read_shape
from lightrainer.tools.estimate.estimation import activation_bytes, layer_bytes

BATCH, SEQUENCE, LAYERS = 2, 64, 3
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = LlamaConfig(
    hidden_size=64, num_hidden_layers=LAYERS, intermediate_size=176, vocab_size=97, **HEADS
)
PRECISIONS = {
    "fp32": (torch.float32, False),
    "bf16-mixed": (torch.float32, True),
    "bf16-true": (torch.bfloat16, False),
}


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps(CONFIG.to_dict()))
    return read_shape(file)


def kept(precision, checkpointing):
    """Bytes of the storages that autograd keeps, without those of weights."""
    dtype, autocast = PRECISIONS[precision]
    CONFIG._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).to(dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    weight_storages = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    storage_bytes: dict[int, int] = {}
    alive = []

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            storage_bytes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no address comes twice
        return tensor

    ids = torch.randint(97, (BATCH, SEQUENCE))
    casting = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), casting:
        model(input_ids=ids, labels=ids, use_cache=not checkpointing)
    return sum(storage_bytes.values())


def job(shape, precision, **changes):
    return Job(model=shape, batch=BATCH, sequence=SEQUENCE, precision=precision, **changes)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations_of_llama(precision, shape):
    """To 2 %."""
    if torch.__version__.startswith("2.8."):
        pytest.skip("torch 2.8 stores more for grouped-query attention")
    estimated = activation_bytes(job(shape, precision))
    assert estimated == pytest.approx(kept(precision, False), rel=0.02)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations_of_llama_with_checkpointing(precision, shape):
    """The inputs of layers and what comes after them; the layer that is computed again comes
    later, once at a time.
    """
    checkpointed = job(shape, precision, checkpointing=True)
    forward = activation_bytes(checkpointed) - layer_bytes(checkpointed)
    assert forward == pytest.approx(kept(precision, True), rel=0.02)
    assert forward < activation_bytes(job(shape, precision)) / 3


def test_estimate_of_a_16_bit_layer_equals_the_paper():
    """Korthikanti et al., equations 2 and 4, without the masks of dropout: 32 s b h, of which 8
    are not split.
    """
    sizes = {
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 16,
        "head_size": 64,
        "intermediate": 4096,
        "vocabulary": 8,
    }
    settings = {"batch": 4, "sequence": 512, "precision": "bf16-true"}
    settings["model"] = ModelShape(layers=1, **sizes, gated=False)
    deeper = {
        **settings,
        "model": ModelShape(layers=2, **sizes, gated=False),
        "checkpointing": True,
    }
    unit = 512 * 4 * 1024
    assert layer_bytes(Job(**settings)) == pytest.approx(32 * unit, rel=0.01)
    inputs = activation_bytes(Job(**deeper)) - activation_bytes(Job(**settings, checkpointing=True))
    assert inputs == 2 * unit
    assert layer_bytes(Job(**settings, gpus=8, tp=8)) == pytest.approx(
        (8 + 24 / 8) * unit, rel=0.02
    )


def test_fsdp_casts_layers_where_autocast_copies_weights(shape):
    mixed = job(shape, "bf16-mixed")
    sharded = job(shape, "bf16-mixed", gpus=2, fsdp="full_shard")
    assert layer_bytes(sharded) == layer_bytes(job(shape, "bf16-true")) < layer_bytes(mixed)
