"""`lightrainer launch` sets the variables of `accelerate launch`, and starts torch's launcher
with the same words.
"""

import os
import sys

import pytest
import yaml

from lightrainer.facade.arguments.launch_variables import VARIABLES
from lightrainer.interception import runner
from lightrainer.tools.launch import launch

LOCAL = {
    "compute_environment": "LOCAL_MACHINE",
    "num_machines": 1,
    "machine_rank": 0,
    "num_processes": 2,
}
LOCAL |= {
    "main_training_function": "main",
    "rdzv_backend": "static",
    "same_network": True,
    "downcast_bf16": "no",
}
LOCAL |= {
    "tpu_env": [],
    "tpu_use_cluster": False,
    "debug": False,
    "use_cpu": False,
    "enable_cpu_affinity": False,
}
FSDP2 = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_reshard_after_forward": True,
}
ZERO = {
    "zero_stage": 3,
    "offload_optimizer_device": "none",
    "offload_param_device": "cpu",
    "zero3_init_flag": True,
}
GROUPS = {"parallelism_config_dp_shard_size": 2, "parallelism_config_tp_size": 2}
FILES = {
    "plain": {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
    "compiled": {
        "distributed_type": "NO",
        "num_processes": 1,
        "dynamo_config": {
            "dynamo_backend": "INDUCTOR",
            "dynamo_mode": "max-autotune",
            "dynamo_use_dynamic": True,
        },
    },
    "fsdp1": {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_version": 1},
    },
    "alone": {"distributed_type": "NO", "num_processes": 8},  # as in the files of TRL
    "fsdp2": {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {**FSDP2, "offload_params": False},
    },
    "groups": {
        "distributed_type": "FSDP",
        "num_processes": 4,
        "fsdp_config": FSDP2,
        "parallelism_config": GROUPS,
    },
    "zero3": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            **ZERO,
            "deepspeed_multinode_launcher": "standard",
            "zero3_save_16bit_model": True,
        },
    },
    "zero file": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "zero.json", "zero3_init_flag": False},
    },
}
OPTIONS = [
    ("fsdp2", []),
    *((name, []) for name in FILES if name != "fsdp2"),
    ("groups", ["--multi_gpu"]),
    ("alone", ["-q", "--multi_gpu"]),
    ("fsdp2", ["--mixed_precision", "no", "--fsdp-version", "1", "--num_processes", "3"]),
    ("fsdp2", ["--multi_gpu"]),
    ("plain", ["--use_deepspeed", "--zero_stage", "2", "--gradient_clipping", "0.5"]),
    (None, ["--num_processes", "2", "--use_fsdp", "--fsdp_offload_params", "true"]),
    (None, ["--num_processes", "1", "--mixed_precision", "fp16", "--dynamo_backend", "eager"]),
]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """`started(file, words)`: the environment, and the words for Python that it would become."""
    monkeypatch.setattr(runner, "become", lambda command: command)
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    def start(file, words):
        monkeypatch.setattr(os, "environ", dict(os.environ))
        return os.environ, launch([*written(tmp_path, file), *words, "train.py", "--lr", "1"])

    return start


def written(folder, name, **changes):
    if name is None:
        return []
    path = folder / "launch.yaml"
    path.write_text(yaml.safe_dump({**LOCAL, **FILES.get(name, {}), **changes}))
    return ["--config_file", str(path)]


def of_accelerate(words):
    """The variables that `accelerate launch` would set."""
    command = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils import launch

    args = command.launch_command_parser().parse_args([*words, "train.py"])
    args, defaults, named = command._validate_launch_command(args)
    if args.use_deepspeed:
        fields = list(defaults.deepspeed_config) if defaults else []
        args.deepspeed_fields_from_accelerate_config = ",".join(
            fields + ["mixed_precision"] * named
        )
        return launch.prepare_deepspeed_cmd_env(args)[1]
    if args.use_fsdp or args.multi_gpu:
        return launch.prepare_multi_gpu_env(args)
    return launch.prepare_simple_launcher_cmd_env(args)[1]


@pytest.mark.parametrize(("file", "words"), OPTIONS, ids=str)
def test_launch_variables_equal_accelerate(started, tmp_path, file, words):
    theirs = of_accelerate([*written(tmp_path, file), *words])
    ours, command = started(file, words)
    handed = [
        name
        for name, row in VARIABLES.items()
        if row.argument or row.refused or "DEEPSPEED" in row.switch
    ]
    no = ("", "false", "no", "default")  # beside DeepSpeed accelerate says nothing of compilation
    for name in handed:
        mine, other = ours.get(name, "").lower(), theirs.get(name, "").lower()
        beside_a_file = (
            name == "ACCELERATE_CONFIG_DS_FIELDS" and "ACCELERATE_DEEPSPEED_CONFIG_FILE" not in ours
        )
        assert mine == other or (mine in no and other in no) or beside_a_file, name
    assert command[-3:] == ["train.py", "--lr", "1"]
    alone = (
        file == "compiled"
        or (file, words) == ("alone", [])
        or words[:2] == ["--num_processes", "1"]
    )
    assert ("torch.distributed.run" in command) != alone


STARTED = [
    ([], ["--nproc_per_node=2", "--standalone"]),
    (
        ["--num_processes", "5", "--main_process_port", "29501"],
        ["--nproc_per_node=5", "--master_port=29501"],
    ),
    (
        ["--max_restarts", "2", "-m"],
        ["--nproc_per_node=2", "--max_restarts=2", "--standalone", "--module"],
    ),
    (["--main_process_port", "0", "-t", "3"], ["--nproc_per_node=2", "--tee=3", "--standalone"]),
    (
        ["--no_python", "--role=a"],
        ["--nproc_per_node=2", "--role=a", "--standalone", "--no_python"],
    ),
    (
        [
            "--num_machines=2",
            "--machine_rank=1",
            "--main_process_ip=10.0.0.1",
            "--main_process_port=9",
        ],
        [
            "--nproc_per_node=1",
            "--nnodes=2",
            "--node_rank=1",
            "--rdzv_backend=static",
            "--rdzv_endpoint=10.0.0.1:9",
        ],
    ),
]


@pytest.mark.parametrize(("words", "expected"), STARTED, ids=str)
def test_torch_starts_the_processes(started, words, expected):
    environment, command = started("plain", words)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert command[3:-3] == expected
    assert environment["LIGHTRAINER_INSTALL"] == "1"


def test_launch_default_file_is_that_of_accelerate_config(started, tmp_path):
    (tmp_path / "accelerate").mkdir()
    _, path = written(tmp_path, "plain", num_processes=7)
    os.rename(path, tmp_path / "accelerate" / "default_config.yaml")
    environment, command = started(None, ["--mixed_precision", "no"])
    assert "--nproc_per_node=7" in command
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"


REFUSED = [
    ("plain", {}, ["--num_proceses", "2"], "--num_proceses. Did you mean '--num_processes'"),
    ("plain", {}, ["--mixed_precision", "fp8"], "error: --mixed_precision fp8: set it to"),
    ("plain", {}, ["--use_megatron_lm"], "error: --use_megatron_lm: Megatron-LM is not supported"),
    ("plain", {"mixed_precision": "fp8"}, [], "launch.yaml: mixed_precision='fp8': set it to"),
    (
        "plain",
        {},
        ["--num_machines", "2"],
        "num_machines=2 needs main_process_ip and main_process_port",
    ),
    (
        "plain",
        {"num_processes": -1},
        [],
        "num_processes=-1 is not a positive multiple of num_machines=1: pass --num_processes",
    ),
    (
        "plain",
        {},
        ["--num_processes", "0"],
        "num_processes=0 is not a positive multiple of num_machines=1: pass --num_processes",
    ),
    ("plain", {}, ["--config_file", "typo.yaml"], "--config_file typo.yaml: No such file"),
    (
        "plain",
        {"num_procesess": 2},
        [],
        "'num_procesess' is not a known setting. Did you mean 'num_processes'",
    ),
    (
        "plain",
        {"distributed_type": "XLA"},
        [],
        "distributed_type=XLA is not supported: use accelerate launch",
    ),
    (
        "plain",
        {"enable_cpu_affinity": True},
        [],
        "launch.yaml: enable_cpu_affinity=True: processes are not bound to cores",
    ),
]


@pytest.mark.parametrize(("file", "changes", "words", "message"), REFUSED, ids=str)
def test_launch_that_cannot_be_is_refused_before_anything_starts(
    started, tmp_path, capsys, file, changes, words, message
):
    with pytest.raises(SystemExit, match="2"):
        started(None, [*written(tmp_path, file, **changes), *words])
    assert message in capsys.readouterr().err
