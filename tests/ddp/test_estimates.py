"""`lightrainer estimate` predicts the memory and traffic of two ranks to the byte."""

import pytest

from helpers.ddp.estimate_script import BATCH, CONFIG, SEQUENCE
from lightrainer.tools.estimate import Job, estimate, model_from_config

MODEL = model_from_config(
    {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6, **CONFIG}
)
JOBS = {
    "ddp": {},
    "ddp accumulated": {"accumulation": 3},
    "ddp bf16": {"precision": "bf16-mixed"},
    "full_shard": {"fsdp": "full_shard"},
    "full_shard accumulated": {"fsdp": "full_shard", "accumulation": 3},
    "full_shard bf16": {"fsdp": "full_shard", "precision": "bf16-mixed"},
    "shard_grad_op": {"fsdp": "shard_grad_op"},
    "shard_grad_op, each batch": {
        "fsdp": "shard_grad_op",
        "accumulation": 2,
        "sync_each_batch": True,
    },
    "full_shard, sp": {"fsdp": "full_shard", "sp": 2},
    "full_shard, version 1": {"fsdp": "full_shard"},
}


def estimated(case):
    changes = {"precision": "fp32", **JOBS[case]}
    return estimate(Job(model=MODEL, gpus=2, batch=BATCH, sequence=SEQUENCE, **changes))


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
    assert seen[case]["gradients"] == memory.gradients - (4 * MODEL.parameters if waits else 0)


@pytest.mark.parametrize("case", JOBS)
def test_estimated_bytes_of_each_collective_match_a_step(case, seen):
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    expected = dict.fromkeys(kinds, 0)
    for collective in estimated(case).traffic:
        expected[collective.kind] += collective.bytes
    assert {kind: seen[case][kind] for kind in expected} == expected
    assert sum(expected.values()) > 0


def test_tensor_parallel(seen):
    """Each linear layer that reads the whole reduces its gradient; norms are whole, where the
    estimate splits all.
    """
    job = Job(model=MODEL, gpus=2, tp=2, batch=BATCH, sequence=SEQUENCE, precision="fp32")
    (collective,) = estimate(job).traffic
    assert seen["tensor parallel"]["all-reduce"] == collective.bytes
    norms = 4 * (2 * MODEL.layers + 1) * MODEL.hidden
    assert seen["tensor parallel"]["parameters"] == estimate(job).memory.parameters + norms / 2
