"""`lightrainer estimate` predicts the memory of two ranks to the byte, and docs/user/scaling.md the
traffic.
"""

import pytest

from helpers.ddp.estimate_script import BATCH, CONFIG, SEQUENCE
from lightrainer.tools.estimate import Job, ModelShape, estimate
from lightrainer.tools.estimate.estimation import count_parameters

MODEL = ModelShape(
    layers=CONFIG["num_hidden_layers"],
    hidden=CONFIG["hidden_size"],
    heads=CONFIG["num_attention_heads"],
    kv_heads=CONFIG["num_key_value_heads"],
    head_size=CONFIG["hidden_size"] // CONFIG["num_attention_heads"],
    intermediate=CONFIG["intermediate_size"],
    vocabulary=CONFIG["vocab_size"],
)
JOBS = {
    "ddp": {},
    "ddp accumulated": {"accumulation": 3},
    "ddp bf16": {"precision": "bf16-mixed"},
    "full_shard": {"fsdp": "full_shard"},
    "full_shard accumulated": {"fsdp": "full_shard", "accumulation": 3},
    "full_shard bf16": {"fsdp": "full_shard", "precision": "bf16-mixed"},
    "shard_grad_op": {"fsdp": "shard_grad_op"},
    "shard_grad_op, each batch": {"fsdp": "shard_grad_op"},
    "full_shard, sp": {"fsdp": "full_shard", "cp": 2},
    "full_shard, version 1": {"fsdp": "full_shard"},
}
PARAMETERS = count_parameters(MODEL)
LAYERS = 3 * 9280
"""Parameters of the three layers; the rest is a norm, an embedding and a head."""


def estimated(case):
    changes = {"precision": "fp32", **JOBS[case]}
    return estimate(Job(model=MODEL, gpus=2, batch=BATCH, sequence=SEQUENCE, **changes))


def exchanged(case):
    """Bytes of the tensors of each kind of collective in a step, by the table of the page."""
    if case.startswith("ddp"):
        # Once for all micro-batches.
        return {"all-reduce": 4 * PARAMETERS}

    micro_batches = 1
    if "accumulated" in case:
        micro_batches = 3
    elif "each batch" in case:
        micro_batches = 2
    reductions = micro_batches if "each batch" in case else 1
    width = 2 if "bf16" in case else 4

    gathered = PARAMETERS
    if "full_shard" in case:
        # Layers are gathered again in the backward pass.
        gathered += LAYERS
    expected = {
        "all-gather": micro_batches * width * gathered,
        "reduce-scatter": reductions * width * PARAMETERS,
    }
    if "sp" in case:
        # Queries, keys, values and outputs of half a sequence, forward and backward, in 3 layers.
        numbers_of_token = 2 * 32 + 2 * 16
        tokens = BATCH * SEQUENCE // 2
        expected["all-to-all"] = 2 * 3 * width * tokens * numbers_of_token
    return expected


@pytest.fixture(scope="module")
def seen(two_ranks):
    ranks = two_ranks("lightrainer", "estimates").ranks
    assert ranks[0] == ranks[1]
    return ranks[0]


@pytest.mark.parametrize("case", JOBS)
def test_estimated_bytes_of_parameters_states_and_gradients_match(case, seen):
    """Local parts of DTensors, of flat parameters, or whole tensors; buckets; between steps, and
    before them.
    """
    memory = estimated(case).memory
    assert seen[case]["parameters"] == memory.parameters
    assert seen[case]["optimizer"] == memory.optimizer
    if case.startswith("ddp"):
        assert seen[case]["buckets"] == memory.buffers
    # With accumulation, what waits for the last micro-batch is gone when the optimizer steps.
    waits = case == "full_shard accumulated"
    assert seen[case]["gradients"] == memory.gradients - (4 * PARAMETERS if waits else 0)


@pytest.mark.parametrize("case", JOBS)
def test_bytes_of_each_collective_of_a_step_are_those_of_the_page(case, seen):
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    expected = {**dict.fromkeys(kinds, 0), **exchanged(case)}
    assert {kind: seen[case][kind] for kind in expected} == expected


def test_tensor_parallel(seen):
    """Each linear layer that reads the whole reduces its gradient; norms are whole, where the
    estimate splits all.
    """
    # In each layer 2 forward, and backward those of query, key, value and two inputs of the MLP.
    reductions = 3 * (2 + 5) + 2
    assert seen["tensor parallel"]["all-reduce"] == reductions * BATCH * SEQUENCE * 32 * 4
    job = Job(model=MODEL, gpus=2, tp=2, batch=BATCH, sequence=SEQUENCE, precision="fp32")
    norms = 4 * (2 * MODEL.layers + 1) * MODEL.hidden
    assert seen["tensor parallel"]["parameters"] == estimate(job).memory.parameters + norms / 2
