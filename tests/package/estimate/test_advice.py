"""The strategy that `lightrainer estimate --compare` recommends: the first row of
docs/user/scaling.md that fits.
"""

import pytest

from lightrainer.tools.estimate import Job, ModelShape, best, compare
from lightrainer.tools.estimate.command import comparison_table

MODELS = {"124M": (12, 768), "1.2B": (24, 2048), "3B": (32, 2560), "7B": (32, 4096)}
MODELS["70B"] = (80, 8192)
"""Layers and width."""
EXPECTED = {
    # model, devices, GiB of each: what to take
    ("124M", 1, 24): "single device",
    ("124M", 64, 80): "DDP",
    ("1.2B", 1, 24): "single device, checkpointing",
    ("1.2B", 4, 24): "FSDP shard_grad_op",
    ("3B", 4, 24): "FSDP full_shard",
    ("70B", 64, 80): "FSDP full_shard, checkpointing",
    ("70B", 1, 80): None,
}


def shape(name):
    layers, hidden = MODELS[name]
    heads = hidden // 64
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=64,
        intermediate=8 * hidden // 3 // 64 * 64,
        vocabulary=32000,
    )


def choose(name, devices, memory, **more):
    return compare(Job(model=shape(name), gpus=devices, gpu_memory=memory, **more))


@pytest.mark.parametrize(("name", "devices", "memory"), EXPECTED)
def test_best_is_the_first_strategy_of_the_page_that_fits(name, devices, memory):
    estimates = choose(name, devices, memory)
    recommended = best(estimates)
    expected = EXPECTED[name, devices, memory]
    assert (recommended and recommended.job.strategy) == expected
    advice = comparison_table(estimates).splitlines()[-1]
    assert advice.startswith(f"Recommended: {expected}" if expected else "None fits")


def test_compare_keeps_micro_batch_and_samples_of_a_step():
    jobs = [estimate.job for estimate in choose("7B", 16, 80, batch=3, accumulation=2)]
    assert {job.batch for job in jobs} == {3}
    assert {job.batch * job.accumulation * job.data_parallel for job in jobs} == {96}
    accumulation = {(job.tp, job.cp): job.accumulation for job in jobs}
    assert accumulation == {(1, 1): 2, (8, 1): 16, (1, 8): 16}


def test_compare_leaves_out_devices_that_cannot_share_layers():
    """Twelve heads on eight devices."""
    jobs = [estimate.job for estimate in choose("124M", 8, 80)]
    assert {job.tp for job in jobs} == {1}
    assert {job.cp for job in jobs} == {1, 8}


def test_estimate_advises_tensor_parallelism_when_only_it_fits():
    estimates = choose("70B", 64, 90, sequence=32768)
    recommended = best(estimates)
    assert recommended is not None
    assert recommended.job.tp == 8
    assert "with gradient_accumulation_steps=8" in comparison_table(estimates)
