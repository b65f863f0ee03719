"""`lightrainer estimate` predicts the memory of two ranks to the byte, and docs/user/scaling.md the
traffic.
"""

import json

import pytest

from helpers.ddp.estimate_script import BATCH, CONFIG, SEQUENCE
from lightrainer.tools.estimate import Job, estimate, read_shape
from lightrainer.tools.estimate.estimation import count_parameters

JOBS = {
    "ddp": {},
    "ddp accumulated": {"accumulation": 3},
    "ddp bf16": {"precision": "bf16-mixed"},
    "full_shard": {"fsdp": "full_shard"},
    "full_shard accumulated": {"fsdp": "full_shard", "accumulation": 3},
    "full_shard bf16": {"fsdp": "full_shard", "precision": "bf16-mixed"},
    "shard_grad_op": {"fsdp": "shard_grad_op"},
    "shard_grad_op, each batch": {"fsdp": "shard_grad_op"},
    "full_shard, sp": {"fsdp": "full_shard"},
    "full_shard, version 1": {"fsdp": "full_shard"},
}
PARAMETERS = 3 * 9280 + 32 + 2 * 96 * 32
"""Three layers, a norm, an embedding and a head."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps({"hidden_act": "silu", "tie_word_embeddings": False, **CONFIG}))
    return read_shape(file)


def estimated(case, model):
    changes = {"precision": "fp32", **JOBS[case]}
    return estimate(Job(model=model, gpus=2, batch=BATCH, sequence=SEQUENCE, **changes))


def sent(case):
    """Bytes of each kind of collective, by the table of the page: P parameters, c bytes of each."""
    batches = 3 if "accumulated" in case else 2 if "each batch" in case else 1
    exchanges = batches if "each batch" in case else 1
    if case.startswith("ddp"):
        return {"all-reduce": 4 * PARAMETERS}
    width = 2 if "bf16" in case else 4
    size = width * PARAMETERS
    gathered = size
    if "full_shard" in case:
        gathered += width * 3 * 9280
    found = {"all-gather": batches * gathered, "reduce-scatter": exchanges * size}
    if "sp" in case:
        # Queries, keys, values and outputs of half a sequence, forward and backward.
        found["all-to-all"] = 2 * 3 * width * BATCH * SEQUENCE // 2 * (2 * 32 + 32)
    return found


@pytest.fixture(scope="module")
def seen(two_ranks):
    ranks = two_ranks("lightrainer", "estimates").ranks
    assert ranks[0] == ranks[1]
    return ranks[0]


@pytest.mark.parametrize("case", JOBS)
def test_the_bytes_of_parameters_and_optimizer_states_and_gradients(case, seen, model):
    """Local parts of DTensors, of flat parameters, or whole tensors; buckets; between steps, and
    before them.
    """
    memory = estimated(case, model)
    assert seen[case]["parameters"] == memory.parameters
    assert seen[case]["optimizer"] == memory.optimizer
    if case.startswith("ddp"):
        assert seen[case]["buckets"] == memory.buffers
    # With accumulation, what waits for the last micro-batch is gone when the optimizer steps.
    waits = case == "full_shard accumulated"
    assert seen[case]["gradients"] == memory.gradients - (4 * PARAMETERS if waits else 0)


@pytest.mark.parametrize("case", JOBS)
def test_the_bytes_of_each_kind_of_collective_in_a_step(case, seen):
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    expected = {**dict.fromkeys(kinds, 0), **sent(case)}
    assert {kind: seen[case][kind] for kind in expected} == expected


def test_tensor_parallel(seen, model):
    """Each linear layer that reads the whole reduces its gradient; norms are whole, where the
    estimate splits all.
    """
    job = Job(model=model, gpus=2, tp=2, batch=BATCH, sequence=SEQUENCE, precision="fp32")
    exchanges = (2 + 5) * 3 + 2
    assert seen["tensor parallel"]["all-reduce"] == exchanges * BATCH * SEQUENCE * 32 * 4
    norms = 4 * (2 * 3 + 1) * 32
    assert seen["tensor parallel"]["parameters"] == estimate(job).parameters + norms / 2


def test_parameters_of_the_measured_model(model):
    assert count_parameters(model) == PARAMETERS
