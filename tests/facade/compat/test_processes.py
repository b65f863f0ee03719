"""Order of the processes of a script, as in the reference."""

from transformers import trainer_utils

from helpers import HELPERS
from helpers.processes.starting import finished_ranks
from lightrainer.facade.compat import processes


def test_main_process_is_found_by_rank():
    for rank, main in ((-1, True), (0, True), (1, False)):
        assert processes.is_main_process(rank) is trainer_utils.is_main_process(rank) is main
    with processes.torch_distributed_zero_first(-1):
        pass


def test_rank_0_goes_first(tmp_path):
    """The script raises if rank 1 does not find the file of rank 0, or rank 0 finds one."""
    script, log = HELPERS / "trainer" / "ordering_script.py", tmp_path / "log.txt"
    finished_ranks(script, str(tmp_path), log=log, seconds=180)
