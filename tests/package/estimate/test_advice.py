"""The strategy that `lightrainer estimate --compare` recommends: the first row of
docs/scaling.md that fits.
"""

import pytest

from lightrainer.tools.estimate import Job, best, compare, model_of_size
from lightrainer.tools.estimate.job import GIB
from lightrainer.tools.estimate.tables import comparison_table

EXPECTED = {
    # parameters, devices, GiB of each: what to take
    (124e6, 1, 24): "single device",
    (124e6, 64, 80): "DDP",
    (1.2e9, 1, 24): "single device, checkpointing",
    (1.2e9, 4, 24): "FSDP shard_grad_op",
    (3e9, 4, 24): "FSDP full_shard",
    (70e9, 64, 80): "FSDP full_shard, checkpointing",
    (70e9, 1, 80): None,
}


def choose(parameters, devices, memory, **more):
    return compare(
        Job(model=model_of_size(int(parameters)), gpus=devices, gpu_memory=memory * GIB, **more)
    )


@pytest.mark.parametrize(("parameters", "devices", "memory"), EXPECTED)
def test_best_is_the_first_strategy_of_the_page_that_fits(parameters, devices, memory):
    estimates = choose(parameters, devices, memory)
    recommended = best(estimates)
    assert (recommended and recommended.job.strategy) == EXPECTED[parameters, devices, memory]


def test_best_of_the_ways_to_shard_sends_the_least():
    estimates = choose(7e9, 16, 80)
    sharded = [
        one
        for one in estimates
        if one.fits and one.job.sharded and not one.job.checkpointing and one.job.tp == 1
    ]
    assert len({one.sent for one in sharded}) > 1
    assert best(estimates).sent == min(one.sent for one in sharded)


def test_compare_keeps_the_samples_of_a_step():
    estimates = choose(7e9, 16, 80, batch=3, accumulation=2)
    assert {one.job.batch for one in estimates} == {3}
    assert {samples_of(one.job) for one in estimates} == {96}
    assert {one.job.accumulation for one in estimates if one.job.tp == 8} == {16}


def test_compare_keeps_the_samples_of_a_step_of_a_tensor_parallel_job():
    for accumulation, batches in ((8, {3}), (3, {1, 3}), (16, {3})):
        estimates = choose(7e9, 16, 80, batch=3, accumulation=accumulation, tp=8)
        assert {one.job.batch for one in estimates} == batches
        assert samples_of(estimates[-1].job) == 6 * accumulation


def test_estimate_advises_tensor_parallelism_when_only_it_fits():
    """Its micro-batch was eight times as large as that of the other strategies."""
    estimates = choose(70e9, 64, 95, sequence=32768)
    recommended = best(estimates)
    assert recommended is not None
    assert recommended.job.tp == 8
    assert "gradient_accumulation_steps=8" in comparison_table(estimates)


def samples_of(job):
    return job.batch * job.accumulation * job.data_parallel
