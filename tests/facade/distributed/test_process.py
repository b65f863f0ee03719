"""Rank, world size and device of a process."""

import json

import pytest
import torch

from helpers.processes.starting import finished_code, finished_ranks
from lightrainer import TrainingArguments
from lightrainer.facade.distributed import process
from lightrainer.facade.distributed.process import ProcessEnvironment, current_process

LAUNCHER = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_USE_CPU",
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variable in LAUNCHER:
        monkeypatch.delenv(variable, raising=False)
    remembered = (process._environment_of, process._warn_once)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def pretend_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_process_is_single_without_a_launcher():
    process = current_process(use_cpu=True)
    assert process == ProcessEnvironment(0, 0, 1, 1, torch.device("cpu"), None)
    assert process.is_main_process
    assert process.is_local_main_process
    assert (process.num_processes, process.process_index, process.local_process_index) == (1, 0, 0)
    assert not torch.distributed.is_initialized()


def test_process_uses_one_of_several_gpus_and_warns_once(monkeypatch, caplog):
    pretend_gpus(monkeypatch, 4)
    assert {current_process().device for _ in range(3)} == {torch.device("cuda", 0)}
    assert [r.message for r in caplog.records if "torchrun --nproc_per_node=4" in r.message] == [
        caplog.messages[0]
    ]


def test_process_uses_the_cpu_when_asked(monkeypatch):
    pretend_gpus(monkeypatch, 4)
    assert current_process(use_cpu=True).device == torch.device("cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert current_process().device == torch.device("cpu")


def test_processes_share_out_the_gpus_they_see(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    assert [process._device_of_rank(False, rank).index for rank in range(3)] == [0, 1, 0]
    pretend_gpus(monkeypatch, 0)
    assert process._device_of_rank(False, 1) == torch.device("cpu")


HERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
SLURM = {"SLURM_LOCALID": "0", "SLURM_JOB_NAME": "train"}
OUT_OF_RANGE = [
    ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2.*between 0 and 1 .*WORLD_SIZE=2"),
    ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
    ({"WORLD_SIZE": "", "RANK": "1"}, "RANK=1 is set, but WORLD_SIZE is not"),
    ({"WORLD_SIZE": "2", "RANK": ""}, "WORLD_SIZE=2 is set, but RANK is not"),
    ({"WORLD_SIZE": "2", "RANK": "1.0"}, "RANK is '1.0', which is not a whole number"),
    ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "2"}, "LOCAL_RANK is 2.*between 0 and 1"),
    (
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "3"},
        "LOCAL_WORLD_SIZE is 3.*WORLD_SIZE=2",
    ),
    ({"SLURM_NTASKS": "2", "SLURM_PROCID": "2", **SLURM}, "SLURM_PROCID is 2.*SLURM_NTASKS=2"),
    ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_RANK is 3"),
    (
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "abc"},
        "MASTER_PORT is 'abc', which is not a whole number",
    ),
    (
        {"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "65536"},
        "MASTER_PORT is not a valid port: '65536'",
    ),
    (
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": ""},
        "Set MASTER_ADDR",
    ),
]


@pytest.mark.parametrize(
    ("variables", "message"),
    OUT_OF_RANGE,
    ids=[" ".join(f"{k}={v}" for k, v in of.items()) for of, _ in OUT_OF_RANGE],
)
def test_process_variable_out_of_range_is_named(monkeypatch, variables, message):
    """Before other processes are waited for."""
    for name, value in {**HERE, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=message):
        TrainingArguments(use_cpu=True, ddp_timeout=3, report_to="none")
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1", "RANK": "-1"},
        {"LOCAL_RANK": "-1"},
        {"RANK": "0"},
        {"WORLD_SIZE": "", "RANK": ""},
    ],
)
def test_variables_that_mean_one_process(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert current_process(use_cpu=True).world_size == 1


def test_process_rank_beside_a_group_of_the_script(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCAL_RANK", "1")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        assert current_process(use_cpu=True).local_rank == 1
    finally:
        torch.distributed.destroy_process_group()


def test_process_reuses_an_existing_group(tmp_path):
    code = f"""
        import torch.distributed as dist
        from lightrainer.facade.distributed.process import current_process
        dist.init_process_group("gloo", init_method="file://{tmp_path}/rendezvous", rank=0, world_size=1)
        print(current_process(use_cpu=True))
        dist.destroy_process_group()
        print(current_process(use_cpu=True).backend)
    """
    output = finished_code(code, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert "world_size=1" in output
    assert "backend='gloo'" in output
    assert output.endswith("None\n")


SCRIPT = """
import json, os, sys, time
from lightrainer.facade.arguments import TrainingArguments
import torch.distributed
rank = int(os.environ["RANK"])
folder = sys.argv[1]
before = torch.distributed.is_initialized()
args = TrainingArguments(folder, use_cpu=True, ddp_timeout=60)
joined = torch.distributed.is_initialized()
order = []
with args.main_process_first(desc="writing"):
    if rank == 0:
        time.sleep(0.5)
        open(f"{folder}/written", "w").close()
    order.append(os.path.exists(f"{folder}/written"))
from transformers import TrainingArguments as Reference
reference = Reference(folder, use_cpu=True)
def view(a):
    return {
        name: getattr(getattr(a, name), "value", getattr(a, name))
        for name in ("world_size", "process_index", "local_process_index", "n_gpu", "parallel_mode", "should_save",
                     "should_log", "train_batch_size")
    } | {"device": a.device.type, "level": a.get_process_log_level()}
facts = {"before": before, "joined": joined, "order": order, "ours": view(args), "reference": view(reference)}
torch.distributed.destroy_process_group()
facts["after"] = view(args)
json.dump(facts, open(f"{folder}/{rank}.json", "w"))
"""


def test_process_pair_joins_one_group_like_the_reference(tmp_path):
    """Under torchrun the constructor joins the group, and what is known of it outlives the
    group.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    log = tmp_path / "log.txt"
    finished_ranks(script, str(tmp_path), log=log, seconds=300, library="transformers")
    for rank in range(2):
        facts = json.loads((tmp_path / f"{rank}.json").read_text())
        assert not facts["before"]
        assert facts["joined"]
        assert facts["order"] == [True]
        assert facts["ours"] == facts["reference"]
        assert facts["ours"]["process_index"] == rank
        assert facts["ours"]["world_size"] == 2
        assert facts["after"] == facts["ours"]


def test_process_group_is_left_at_exit(tmp_path):
    """A program that never destroys its group ends without the complaint of gloo."""
    code = f"""
        from pathlib import Path
        from lightrainer.facade.distributed.process import current_process
        process = current_process(use_cpu=True)
        Path({str(tmp_path)!r}, str(process.process_index)).write_text(process.backend)
    """
    lines = finished_code(code, tmp_path, processes=2).splitlines()
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["gloo", "gloo"]
    # Gloo of torch 2.8 logs its connections.
    assert [line for line in lines if line and "[Gloo] " not in line] == []
