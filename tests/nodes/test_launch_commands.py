"""`accelerate launch` and `lightrainer launch` train as the arguments that mean the same do, to
the last bit.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers import HELPERS, TESTS
from helpers.nodes.machines import why_not_isolated
from helpers.processes.forking import free_port
from helpers.processes.starting import forked_python, forked_torchrun

SCRIPT = HELPERS / "nodes" / "launch_script.py"
DEEPSPEED = Path(sys.prefix) / "deepspeed"
SECONDS = 400
WRAPPED = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
}
FSDP2 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, **WRAPPED}}
ZERO = {
    "zero3_save_16bit_model": True,
    "offload_optimizer_device": "none",
    "deepspeed_multinode_launcher": "standard",
}
CASES = {
    "fsdp2": (FSDP2, {"fsdp": True}, "ModelParallelStrategy"),
    "one process": ({"distributed_type": "NO", "num_processes": 1}, {}, "SingleDeviceStrategy"),
    "one process in bf16": (
        {"distributed_type": "NO", "num_processes": 1, "mixed_precision": "bf16"},
        {"bf16": True},
        "SingleDeviceStrategy",
    ),
    "ddp": ({"distributed_type": "MULTI_GPU"}, {}, "DDPStrategy"),
    "fsdp1": (
        {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1, **WRAPPED}},
        {"fsdp": "full_shard auto_wrap"},
        "FSDPStrategy",
    ),
    "zero2": (
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2, **ZERO}},
        {"deepspeed": {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}},
        "DeepSpeedStrategy",
    ),
    "zero3": (
        {
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True, **ZERO},
        },
        {"deepspeed": {"zero_optimization": {"stage": 3}, "gradient_clipping": "auto"}},
        "DeepSpeedStrategy",
    ),
    "tensor parallel": (
        {**FSDP2, "parallelism_config": {"parallelism_config_tp_size": 2}},
        {"parallelism_config": {"tp_size": 2}},
        "ModelParallelStrategy",
    ),
    "two machines": ({"distributed_type": "MULTI_GPU", "num_machines": 2}, {}, "DDPStrategy"),
    "two isolated machines": (
        {"distributed_type": "MULTI_GPU", "num_machines": 2},
        {},
        "DDPStrategy",
    ),
    "two isolated machines, fsdp2": (
        {**FSDP2, "num_machines": 2},
        {"fsdp": True},
        "ModelParallelStrategy",
    ),
}
USUAL = ("fsdp2",)  # the others with `make test-nodes`


def started(words, folder, python=sys.executable):
    folders = [TESTS, DEEPSPEED] if DEEPSPEED.is_dir() else [TESTS]
    surroundings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "DS_ACCELERATOR": "cpu",
    }
    with open(folder / "log.txt", "a") as log:
        return subprocess.Popen([python, *words], stdout=log, stderr=log, env=surroundings)


def finished(processes, folder):
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(codes), (folder / "log.txt").read_text()[-8000:]
    return (folder / "model" / "model.safetensors").read_bytes(), json.loads(
        (folder / "seen.json").read_text()
    )


def by_arguments(folder, config, given):
    folder.mkdir()
    words = [str(folder), json.dumps(given)]
    if config.get("num_processes") == 1:
        return finished([started([str(SCRIPT), *words], folder)], folder)
    library = "lightrainer and deepspeed" if "deepspeed" in given else "lightrainer"
    code, output = forked_torchrun(
        SCRIPT, *words, log=folder / "log.txt", seconds=SECONDS, library=library
    )
    assert code == 0, output[-8000:]
    return finished([], folder)


def by_launcher(folder, module, config, python, isolated):
    """One launcher for each machine: in network namespaces, or all of them on this one."""
    folder.mkdir()
    machines, path = config.get("num_machines", 1), folder / "launch.yaml"
    defaults = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": 1,
        "num_processes": 2,
        "mixed_precision": "no",
    }
    path.write_text(
        yaml.safe_dump({**defaults, "same_network": True, "rdzv_backend": "static", **config})
    )
    address = "10.9.0.1" if isolated else "127.0.0.1"
    place = [
        "--config_file",
        str(path),
        "--main_process_ip",
        address,
        "--main_process_port",
        str(free_port()),
    ]
    commands = [
        [*module, *place, "--machine_rank", str(rank), str(SCRIPT), str(folder)]
        for rank in range(machines)
    ]
    if isolated:
        commands = [
            [
                str(SCRIPT.with_name("launched_machines_script.py")),
                str(folder / "machines"),
                json.dumps(commands),
            ]
        ]
    return finished([started(words, folder, python) for words in commands], folder)


@pytest.mark.parametrize(
    "name", [one if one in USUAL else pytest.param(one, marks=pytest.mark.nodes) for one in CASES]
)
def test_launch_commands_train_as_the_arguments_do(tmp_path, name):
    pytest.importorskip("accelerate")
    config, arguments, strategy = CASES[name]
    if "zero" in name and not DEEPSPEED.is_dir() and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    isolated = "isolated" in name
    if isolated and why_not_isolated():
        pytest.skip(why_not_isolated())
    weights, report = by_arguments(tmp_path / "arguments", config, arguments)
    assert report[1:] == [strategy, 1 if "one process" in name else 2, []]
    for module in (["-m", "lightrainer", "launch"], ["-m", "accelerate.commands.launch"]):
        python = forked_python() if name in USUAL else sys.executable
        launched = by_launcher(tmp_path / module[1], module, config, python, isolated)
        assert launched[0] == weights, module
        assert launched[1][:3] == report[:3]
        assert bool(launched[1][3]) == (bool(arguments)), "what was taken from the environment"
