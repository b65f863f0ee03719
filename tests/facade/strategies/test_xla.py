"""A device of torch_xla: the plan and the arguments, everywhere; a real training where torch_xla
can be imported.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from helpers import HELPERS
from lightrainer import TrainingArguments
from lightrainer.facade.arguments.enums import ParallelMode
from lightrainer.facade.distributed import process
from lightrainer.facade.distributed.xla_device import xla_is_chosen, xla_process_count
from lightrainer.facade.strategies.plan import translate
from lightrainer.lightning_modules.models.tied_parameters import move_model


@pytest.fixture
def on_a_tpu(monkeypatch):
    """As if torch_xla were there, with a TPU; nothing is computed with it."""
    monkeypatch.setattr("lightrainer.facade.distributed.xla_device.has_xla", lambda: True)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    monkeypatch.setattr(process, "xla_device", lambda: torch.device("xla", 0))
    process._environment_of.cache_clear()
    yield
    process._environment_of.cache_clear()


def arguments(tmp_path, **changes):
    return TrainingArguments(str(tmp_path), report_to="none", **changes)


def test_members_of_the_arguments(tmp_path, on_a_tpu):
    args = arguments(tmp_path, bf16=True, debug="tpu_metrics_debug")
    assert (str(args.device), args.parallel_mode, args.n_gpu, args.world_size) == (
        "xla:0",
        ParallelMode.TPU,
        0,
        1,
    )
    assert args.distributed_state.distributed_type == "XLA"
    assert args.train_batch_size == args.per_device_train_batch_size


def test_xla_accepts_use_cpu(tmp_path, on_a_tpu):
    args = arguments(tmp_path, use_cpu=True)
    assert (args.device.type, args.parallel_mode) == ("cpu", ParallelMode.NOT_PARALLEL)


def test_torch_xla_alone_changes_nothing(monkeypatch):
    """Without a TPU, and without PJRT_DEVICE, it is only a package that is installed."""
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    monkeypatch.setattr("lightrainer.facade.distributed.xla_device.has_xla", lambda: True)
    monkeypatch.setattr("lightrainer.facade.distributed.xla_device._CHIPS", ())
    assert not xla_is_chosen()
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert xla_is_chosen()
    monkeypatch.setattr("lightrainer.facade.distributed.xla_device.has_xla", lambda: False)
    assert not xla_is_chosen()


def test_xla_plan(tmp_path, on_a_tpu):
    plan = translate(arguments(tmp_path, bf16=True))
    assert (plan.accelerator, plan.devices, plan.num_nodes, plan.precision) == (
        "tpu",
        1,
        1,
        "bf16-mixed",
    )
    assert plan.strategy.name == "SingleDeviceXLAStrategy"
    assert not plan.strategy.shards_weights
    assert "SingleDeviceXLAStrategy(device=xla:0)" in str(plan)


CHANGES = [
    (
        {"fsdp": "full_shard", "fsdp_config": {"xla": True}},
        "1",
        NotImplementedError,
        "fsdp='full_shard' is not supported on devices of torch_xla",
    ),
    ({}, "4", NotImplementedError, "The device xla in 4 processes is not supported"),
    ({"fp16": True}, "1", NotImplementedError, "which compute in bfloat16: pass bf16=True"),
    ({"fsdp": "full_shard"}, "1", NotImplementedError, "is not supported on devices of torch_xla"),
]


@pytest.mark.parametrize(("changes", "processes", "error", "message"), CHANGES)
def test_xla_refuses_by_name_what_does_not_run(
    changes, processes, error, message, tmp_path, on_a_tpu, monkeypatch
):
    monkeypatch.setenv("PJRT_LOCAL_PROCESS_COUNT", processes)
    assert xla_process_count() == int(processes)
    args = arguments(tmp_path, **changes)
    with pytest.raises(error, match=message):
        translate(args).strategy.check(args, torch.nn.Linear(1, 1))


def test_moving_a_model_keeps_what_is_shared():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    move_model(model, torch.device("meta"))
    assert model[1].weight is model[0].weight
    assert model[0].weight.device.type == "meta"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A training with torch_xla, in a separate process, with the CPU as the only PJRT device."""
    if importlib.util.find_spec("torch_xla") is None:
        pytest.skip("torch_xla is not installed")
    script = HELPERS / "devices" / "xla_script.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path_factory.mktemp("xla"))],
        env={**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("CompileTime") >= 2  # the metrics of torch_xla, which `debug` asks for
    return json.loads(done.stdout.splitlines()[-1])


def test_xla_training_equals_the_cpu(seen):
    """Losses, norms, predictions, checkpoints and resumption; in bfloat16 nearly."""
    assert seen["members"] == ["xla:0", "tpu", 0, 1]
    assert (seen["strategy"], seen["parameters on"]) == ("SingleDeviceXLAStrategy", ["xla"])
    assert seen["xla"] == pytest.approx(seen["cpu"], abs=1e-5)
    assert seen["xla predicted"] == pytest.approx(seen["cpu predicted"], abs=1e-5)
    assert seen["bf16"] == pytest.approx(seen["cpu"], rel=0.02)
    assert seen["bf16"] != pytest.approx(seen["cpu"], abs=1e-5)
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} < set(
        seen["files"]
    )
    assert seen["evaluated on the cpu"] == pytest.approx(seen["xla"][-1], abs=1e-5)
    assert seen["resumed"] == seen["straight"] != pytest.approx(seen["xla"], abs=1e-2)
