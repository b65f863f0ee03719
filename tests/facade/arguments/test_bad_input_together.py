"""Wrong arguments are refused before processes wait for each other: the second of two never
comes.
"""

import os

import pytest

from lightrainer import TrainingArguments
from lightrainer.facade.distributed import process, process_group


@pytest.fixture(autouse=True)
def two_processes(monkeypatch):
    """This process is the first of two, and would wait for the other as soon as it joined."""
    places = {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in places.items():
        monkeypatch.setenv(name, value)

    def waits(*args, **kwargs):
        raise AssertionError("waits for the other process")

    monkeypatch.setattr(process_group, "join", waits)
    monkeypatch.setattr(process, "_joined", {})
    yield
    process._world_sizes.pop(os.getpid(), None)


ZERO = {"zero_optimization": {"stage": 2}}
IMPOSSIBLE = [
    ({"fsdp": "full_shard", "deepspeed": ZERO}, "fsdp='full_shard' and deepspeed "),
    ({"parallelism_config": {"tp_size": 4}}, "tp_size=4 needs 4 processes, but there are 2"),
    ({"fsdp": "full_shard", "fsdp_config": "{broken"}, "fsdp_config=.* is not JSON"),
    ({"deepspeed": "{broken"}, "deepspeed=.* is not JSON"),
    ({"fsdp": "full_shard", "fsdp_config": {"no_such_key": 1}}, "no_such_key"),
]


@pytest.mark.parametrize(("changes", "message"), IMPOSSIBLE, ids=lambda value: str(value)[:60])
def test_impossible_combinations(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingArguments(str(tmp_path), **changes)


def test_bad_input_missing_file(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"fsdp_config='/nowhere\.json': the file does not exist"
    ):
        TrainingArguments(str(tmp_path), fsdp="full_shard", fsdp_config="/nowhere.json")


def test_right_arguments_wait_for_the_other_process(tmp_path):
    """Otherwise the tests above would show nothing."""
    with pytest.raises(AssertionError, match="waits for the other process"):
        TrainingArguments(str(tmp_path), use_cpu=True)
