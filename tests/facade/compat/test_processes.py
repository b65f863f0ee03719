"""What processes gather: the same as in the reference."""

import functools
from pathlib import Path

import pytest
import torch
from starting import finished_ranks
from transformers import trainer_utils, training_args

from lightrainer.facade.compat import processes


def test_one_process_has_nobody_to_gather_from():
    for rank, main in ((-1, True), (0, True), (1, False)):
        assert processes.is_main_process(rank) is trainer_utils.is_main_process(rank) is main
    assert processes.total_processes_number(-1) == trainer_utils.total_processes_number(-1) == 1
    mode = training_args.ParallelMode.NOT_PARALLEL
    given = torch.ones(2, 3)
    assert processes.nested_gather(given, mode) is given
    assert processes.nested_gather(None, mode) is None
    with processes.torch_distributed_zero_first(-1):
        pass
    for function in (
        processes.distributed_concat,
        functools.partial(processes.distributed_broadcast_scalars, device="cpu"),
    ):
        with pytest.raises(AssertionError, match="one process"):
            function([given] if function is processes.distributed_concat else [1.0])


def test_progress_bars_of_the_hub_are_quiet_meanwhile():
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    with processes.suppress_progress_bars():
        assert are_progress_bars_disabled()
    assert not before
    assert not are_progress_bars_disabled()


def test_two_processes(tmp_path):
    """What they gather is what the reference gathers; the script raises where it is not."""
    script, log = Path(__file__).with_name("gathering_script.py"), tmp_path / "log.txt"
    finished_ranks(script, str(tmp_path), log=log, seconds=180, library="transformers")
