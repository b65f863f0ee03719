"""The strategy that `lightrainer estimate --compare` recommends: the first row of docs/scaling.md that fits."""

import pytest

from lightrainer.tools.estimate import Job, compare, model_of_size
from lightrainer.tools.estimate.job import GIB

EXPECTED = {
    # parameters, devices, GiB of each: what to take
    (124e6, 1, 24): "single device",
    (124e6, 4, 24): "DDP",
    (124e6, 8, 80): "DDP",
    (124e6, 64, 80): "DDP",
    (1.2e9, 4, 80): "DDP",
    (1.2e9, 8, 80): "DDP",
    (1.2e9, 1, 24): "single device, checkpointing",
    (1.2e9, 4, 24): "FSDP shard_grad_op",
    (3e9, 4, 80): "DDP",
    (3e9, 4, 24): "FSDP full_shard",
    (7e9, 8, 80): "FSDP shard_grad_op",
    (7e9, 2, 80): "FSDP full_shard",
    (7e9, 8, 24): "FSDP full_shard, checkpointing",
    (7e9, 4, 24): "ZeRO-2, offload optimizer, checkpointing",
    (30e9, 64, 80): "FSDP full_shard",
    (70e9, 64, 80): "FSDP full_shard, checkpointing",
    (70e9, 16, 80): "FSDP full_shard, TP 8 with SP, checkpointing",
    (70e9, 8, 80): "ZeRO-3, offload optimizer and parameters",
    (70e9, 1, 80): None,
}


def choose(parameters, devices, memory, **more):
    return compare(Job(model=model_of_size(int(parameters)), gpus=devices, gpu_memory=memory * GIB, **more))


@pytest.mark.parametrize(("parameters", "devices", "memory"), EXPECTED)
def test_the_table(parameters, devices, memory):
    choice = choose(parameters, devices, memory)
    assert (choice.best and choice.best.job.strategy) == EXPECTED[parameters, devices, memory]
    assert bool(choice.reason) == (choice.best is not None)


def test_all_ways_to_shard_that_fit_are_told_apart_by_what_they_send():
    choice = choose(7e9, 16, 80)
    sharded = [one for one in choice.estimates if one.fits and (one.job.fsdp or one.job.deepspeed) and not one.copied]
    alone = [one for one in sharded if not one.job.checkpointing and one.job.tp == one.job.cp == 1]
    assert len({one.sent for one in alone}) > 1
    assert choice.best.sent == min(one.sent for one in alone)
