"""Estimates of `cp_size`: devices that share sequences keep the activations of their parts.

`tests/ddp/test_estimates.py` compares parameters and states of `sp_size` with two processes.
"""

import pytest

from lightrainer.tools.estimate import Job, estimate, read_shape

MODEL = read_shape("1B")


def shared(**values):
    job = Job(**{"model": MODEL, "gpus": 8, "fsdp": "full_shard", "sequence": 4096, **values})
    return estimate(job)


def test_estimate_of_shared_sequences_counts_activations_of_a_part():
    whole = shared()
    part = shared(cp=4)
    quarter = shared(sequence=1024)
    assert part.memory.activations == quarter.memory.activations < whole.memory.activations
    assert part.memory.logits == whole.memory.logits / 4
    assert part.memory.parameters == whole.memory.parameters
    assert part.job.data_parallel == 2
    # The keys and values of a layer: two matrices of 8 heads of 64 numbers, in 16 bits.
    gathered = part.memory.buffers - whole.memory.buffers
    assert gathered == 4096 * 2 * 8 * 64 * 2


def test_estimate_pads_a_sequence_to_twice_its_parts():
    assert shared(sequence=1001, cp=8).job.part_length == 126
    assert shared(sequence=1001).job.part_length == 1001


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cp": 3}, "do not divide gpus=8"),
        ({"cp": 2, "fsdp": None}, "Add --fsdp full_shard"),
    ],
)
def test_estimate_refuses_sequences_that_cannot_be_shared(values, message):
    with pytest.raises(ValueError, match=message):
        shared(**values)
