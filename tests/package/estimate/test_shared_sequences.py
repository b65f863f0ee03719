"""Estimates of `cp_size` and `sp_size`: devices that share sequences keep and send their parts.

`tests/ddp/test_estimates.py` compares the bytes of `sp_size` with those of two processes.
"""

import pytest

from lightrainer.tools.estimate import Job, compare, estimate, model_of_size

MODEL = model_of_size(7_000_000_000)


def shared(**values):
    return estimate(Job(model=MODEL, gpus=8, fsdp="full_shard", sequence=4096, **values))


@pytest.mark.parametrize("way", ["cp", "sp"])
def test_estimate_of_shared_sequences_counts_activations_of_a_part(way):
    whole, part = shared(), shared(**{way: 4})
    quarter = shared().job.sequence // 4
    alone = estimate(Job(model=MODEL, gpus=8, fsdp="full_shard", sequence=quarter))
    assert part.memory.activations == alone.memory.activations < whole.memory.activations
    assert part.memory.logits == whole.memory.logits / 4
    assert part.memory.parameters == whole.memory.parameters
    assert part.job.data_parallel == 2


@pytest.mark.parametrize(("checkpointing", "gathers"), [(False, 2), (True, 3)])
def test_keys_and_values_are_gathered_and_their_gradients_scattered(checkpointing, gathers):
    sent = {
        (one.kind, one.what): one.bytes
        for one in shared(cp=4, batch=2, checkpointing=checkpointing).traffic
    }
    of_layer = 2 * 4096 * 2 * MODEL.kv_heads * MODEL.head_size * 2
    assert sent["all-gather", "keys and values"] == gathers * MODEL.layers * of_layer
    assert sent["reduce-scatter", "their gradients"] == MODEL.layers * of_layer


def test_estimate_pads_a_sequence_to_twice_its_parts():
    job = Job(model=MODEL, gpus=8, fsdp="full_shard", sequence=1001, cp=8)
    assert job.part_length == 126
    assert Job(model=MODEL, gpus=8, sequence=1001).part_length == 1001


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cp": 2, "sp": 2}, "both share sequences"),
        ({"cp": 3}, "do not divide gpus=8"),
        ({"sp": 64, "gpus": 64}, "do not divide heads=32"),
        ({"cp": 2, "fsdp": None}, "Use fsdp='full_shard'"),
        ({"cp": 2, "attention": "eager"}, "only the attention of torch"),
    ],
)
def test_estimate_refuses_sequences_that_cannot_be_shared(values, message):
    with pytest.raises(ValueError, match=message):
        Job(**{"model": MODEL, "gpus": 8, "fsdp": "full_shard", **values})


def test_compare_shares_sequences_where_the_model_is_sharded():
    estimates = compare(Job(model=MODEL, gpus=8, fsdp="full_shard", cp=4))
    assert {one.job.cp for one in estimates} == {4}
    assert all(one.job.sharded for one in estimates)
    assert len(estimates) == 4
