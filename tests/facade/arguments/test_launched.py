"""Environment variables of `accelerate launch`: every variable has a row, and every row its
effect.
"""

import ast
import contextlib
import inspect
import json
import re
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.trainer.tiny_trainings import arguments
from lightrainer import Trainer, TrainingArguments
from lightrainer.facade.arguments import launched
from lightrainer.facade.arguments.fsdp_config import read_fsdp
from lightrainer.facade.arguments.launch_variables import VARIABLES

command = pytest.importorskip("accelerate.commands.launch")


@pytest.fixture(autouse=True)
def launch(monkeypatch):
    """`launch(environment)`: this is one of four processes that were started so."""
    monkeypatch.setattr(launched, "launched_world_size", lambda: 4)
    return lambda environment: [
        monkeypatch.setenv(name, value) for name, value in environment.items()
    ]


def names_set_by(module):
    """Find the names of variables that the source of a module sets."""
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside, keys = list(ast.walk(function)), []
        assigned = [
            n for n in inside if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
        ]
        texts = {ast.unparse(node.targets[0]): node.value.value for node in assigned}
        for node in inside:
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys += (
                    [node.slice] if ast.unparse(node.value) in ("current_env", "os.environ") else []
                )
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "environment":
                keys += node.value.keys if isinstance(node.value, ast.Dict) else []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"^([A-Z_]+)=1$", node.value)
        for key in keys:
            with contextlib.suppress(NameError, AttributeError):  # an option's own name, see below
                yield eval(ast.unparse(key), {**texts})


def set_by_the_launcher():
    from accelerate.utils import launch

    fp8 = [
        action.dest
        for action in command.launch_command_parser()._actions
        if action.dest.startswith("fp8_")
    ]
    variables = {
        *names_set_by(command),
        *names_set_by(launch),
        *(f"ACCELERATE_{name.upper()}" for name in fp8),
    }
    return sorted(variables - {"name"})


FOR_OTHERS = (
    # the place of the process, see distributed/launchers.py
    *("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    # beside a switch that is refused
    *("MEGATRON_LM_*", "ACCELERATE_FP8_*", "ACCELERATE_USE_SAGEMAKER"),
    # devices
    *(
        "ACCELERATE_IN_TPU_POD",
        "XLA_USE_BF16",
        "XLA_DOWNCAST_BF16",
        "*_VISIBLE_*",
        "ZE_AFFINITY_MASK",
    ),
    *(
        "KMP_AFFINITY",
        "KMP_BLOCKTIME",
        "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
        "PYTHONPATH",
        "AWS_*",
        "FORK_LAUNCHED",
    ),
)
"""Variables that other libraries read, or that count beside others only."""


def test_launched_variables_all_have_a_row():
    unlisted = [name for name in set_by_the_launcher() if name not in VARIABLES]
    assert [
        name for name in unlisted if not any(fnmatch(name, pattern) for pattern in FOR_OTHERS)
    ] == []


def fsdp(**more):
    """The variables of FSDP, without their prefix."""
    return {
        "ACCELERATE_USE_FSDP": "true",
        **{f"FSDP_{name}": value for name, value in more.items()},
    }


def layers(**more):
    return fsdp(AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP", **more)


def deepspeed(**more):
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        **{f"ACCELERATE_{name}": value for name, value in more.items()},
    }


def groups(**more):
    more = {f"PARALLELISM_CONFIG_{name}": value for name, value in more.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **more}


def dynamo(**more):
    return {f"ACCELERATE_DYNAMO_{name}": value for name, value in more.items()}


ZERO = "deepspeed.zero_optimization"
NVME = {"device": "nvme", "nvme_path": "/fast"}
FILLED = [
    ({"ACCELERATE_USE_CPU": "True"}, "device.type", "cpu"),
    ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "mixed_precision", "bf16"),
    (dynamo(BACKEND="AOT_EAGER"), "torch_compile_backend", "aot_eager"),
    (dynamo(BACKEND="INDUCTOR", MODE="max-autotune"), "torch_compile_mode", "max-autotune"),
    (
        dynamo(USE_FULLGRAPH="True", USE_DYNAMIC="False"),
        "compile_options",
        {"fullgraph": True, "dynamic": False},
    ),
    (fsdp(VERSION="2"), "settings.version", 2),
    (fsdp(SHARDING_STRATEGY="SHARD_GRAD_OP"), "settings.sharding", "shard_grad_op"),
    (fsdp(VERSION="2", RESHARD_AFTER_FORWARD="false"), "settings.sharding", "shard_grad_op"),
    (
        fsdp(SHARDING_STRATEGY="HYBRID_SHARD", RESHARD_AFTER_FORWARD="full_shard"),
        "settings.sharding",
        "hybrid_shard",
    ),
    (fsdp(OFFLOAD_PARAMS="true"), "settings.offload", True),
    (fsdp(AUTO_WRAP_POLICY="SIZE_BASED_WRAP", MIN_NUM_PARAMS="50"), "settings.min_num_params", 50),
    (layers(MIN_NUM_PARAMS="100000000"), "settings.wrap", "layers"),
    (layers(TRANSFORMER_CLS_TO_WRAP="A,B"), "settings.layers", ("A", "B")),
    (fsdp(BACKWARD_PREFETCH="BACKWARD_POST"), "settings.backward_prefetch", "backward_post"),
    (fsdp(STATE_DICT_TYPE="SHARDED_STATE_DICT"), "settings.state_dict_type", "sharded"),
    (fsdp(FORWARD_PREFETCH="true"), "settings.forward_prefetch", True),
    (fsdp(USE_ORIG_PARAMS="false"), "settings.use_orig_params", False),
    (fsdp(CPU_RAM_EFFICIENT_LOADING="true"), "settings.cpu_ram_efficient_loading", True),
    (fsdp(SYNC_MODULE_STATES="false"), "settings.sync_module_states", False),
    (layers(ACTIVATION_CHECKPOINTING="true"), "settings.activation_checkpointing", True),
    (deepspeed(DEEPSPEED_ZERO_STAGE="3"), f"{ZERO}.stage", 3),
    (deepspeed(GRADIENT_ACCUMULATION_STEPS="1"), "deepspeed.gradient_accumulation_steps", 1),
    (deepspeed(GRADIENT_CLIPPING="1.0"), "deepspeed.gradient_clipping", 1.0),
    (
        deepspeed(DEEPSPEED_ZERO3_SAVE_16BIT_MODEL="true"),
        f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
        True,
    ),
    (deepspeed(DEEPSPEED_MOE_LAYER_CLS_NAMES="A,B"), f"{ZERO}.leaf_module.classes", ["A", "B"]),
    *(
        (
            deepspeed(DEEPSPEED_ZERO_STAGE="3")
            | {f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE": "nvme"}
            | {f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_NVME_PATH": "/fast"},
            f"{ZERO}.offload_{part.lower()}",
            NVME,
        )
        for part in ("OPTIMIZER", "PARAM")
    ),
    *(
        (groups(**{f"{name}_SIZE": "2"}), f"parallelism_config.{name.lower()}_size", 2)
        for name in ("DP_REPLICATE", "DP_SHARD", "TP", "CP", "SP")
    ),
    (groups(CP_BACKEND="torch"), "parallelism_config.cp_backend", "torch"),
    (groups(SP_BACKEND="deepspeed"), "parallelism_config.sp_backend", "deepspeed"),
    (groups(CP_COMM_STRATEGY="alltoall"), "parallelism_config.rotation", "alltoall"),
    (
        groups(SP_SEQ_LENGTH="None", SP_ATTN_IMPLEMENTATION="sdpa"),
        "parallelism_config.sp_handler.sp_seq_length",
        None,
    ),
    (
        groups(SP_SEQ_LENGTH="8", SP_SEQ_LENGTH_IS_VARIABLE="False"),
        "parallelism_config.sp_handler.sp_seq_length",
        8,
    ),
]
REFUSALS = [
    ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "'bf16', 'fp16' or 'no'"),
    (dynamo(USE_REGIONAL_COMPILATION="True"), "dynamo_use_regional_compilation"),
    ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "Megatron-LM"),
    ({"ACCELERATE_CPU_AFFINITY": "1"}, "enable_cpu_affinity"),
    ({"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "DATA_PARALLEL"}, "smdistributed"),
    (fsdp(IGNORED_MODULES="head"), "fsdp_config['ignored_modules']='head'"),
    (
        layers(VERSION="2", ACTIVATION_CHECKPOINTING_OFFLOAD="true"),
        "['activation_checkpointing_offload']=True",
    ),
    (deepspeed(GRADIENT_ACCUMULATION_STEPS="4"), "gradient_accumulation_steps is 4"),
    (groups(TP_SIZE="0"), "tp_size=0"),
    ({"ACCELERATE_USE_CPU": "FOO"}, "use_cpu of the launcher (ACCELERATE_USE_CPU='FOO')"),
    (dynamo(USE_FULLGRAPH="FOO"), "dynamo_use_fullgraph of the launcher"),
    (deepspeed(DEEPSPEED_ZERO3_SAVE_16BIT_MODEL="FOO"), "zero3_save_16bit_model of the launcher"),
]


def at(args, path) -> Any:
    first, *names = path.split(".")
    value = (
        read_fsdp(args.fsdp, args.fsdp_config)[0] if first == "settings" else getattr(args, first)
    )
    for name in names:
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


@pytest.mark.parametrize(("environment", "path", "expected"), FILLED, ids=str)
def test_launched_variable_sets_its_argument(tmp_path, launch, environment, path, expected):
    launch(environment)
    args = arguments(tmp_path, use_cpu=True)
    assert at(args, path) == expected
    again = arguments(
        tmp_path, use_cpu=True, **{name: getattr(args, name) for name in launched.FIELDS}
    )
    assert at(again, path) == expected, "arguments that are made of others say the same"


@pytest.mark.parametrize(("environment", "message"), REFUSALS, ids=str)
def test_unsupported_values_are_refused_by_name(tmp_path, launch, environment, message):
    launch(environment)
    with pytest.raises((NotImplementedError, ValueError), match=re.escape(message)):
        arguments(tmp_path, use_cpu=True)


MISSPELT = {
    "VERSION": "3",
    "SHARDING_STRATEGY": "FULL_SHART",
    "RESHARD_AFTER_FORWARD": "maybe",
    "OFFLOAD_PARAMS": "host",
    "MIN_NUM_PARAMS": "many",
    "AUTO_WRAP_POLICY": "TRANSFORMER_WRAP",
    "BACKWARD_PREFETCH": "BACKWARDS",
    "STATE_DICT_TYPE": "FULL",
    "FORWARD_PREFETCH": "often",
    "USE_ORIG_PARAMS": "original",
    "CPU_RAM_EFFICIENT_LOADING": "efficient",
    "SYNC_MODULE_STATES": "all",
    "ACTIVATION_CHECKPOINTING": "some",
}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_values_of_fsdp_are_refused_by_option(
    tmp_path, launch, monkeypatch, name, processes
):
    """In one process, too, where FSDP has no effect."""
    monkeypatch.setattr(launched, "launched_world_size", lambda: processes)
    launch(fsdp(**{name: MISSPELT[name]}))
    option = VARIABLES[f"FSDP_{name}"].option
    with pytest.raises(ValueError, match=rf"{option} of the launcher \(FSDP_{name}="):
        arguments(tmp_path, use_cpu=True)


def test_valid_values_of_fsdp_only_warn_in_one_process(tmp_path, launch, monkeypatch, caplog):
    monkeypatch.setattr(launched, "launched_world_size", lambda: 1)
    launch(fsdp(VERSION="2", SHARDING_STRATEGY="SHARD_GRAD_OP", IGNORED_MODULES="head"))
    assert not arguments(tmp_path, use_cpu=True).fsdp
    assert "ACCELERATE_USE_FSDP" in caplog.text


@pytest.mark.parametrize("by_launcher", [False, True])
def test_an_unknown_mode_is_named(tmp_path, launch, by_launcher):
    options = {"torch_compile": True, "torch_compile_mode": "fast"}
    named = "torch_compile_mode='fast'"
    if by_launcher:
        launch(dynamo(BACKEND="inductor", MODE="fast"))
        options = {}
        named = r"dynamo_mode of the launcher \(ACCELERATE_DYNAMO_MODE='fast'\)"
    args = arguments(tmp_path, use_cpu=True, **options)
    with pytest.raises(ValueError, match=f"{named} is not known to torch.*max-autotune"):
        Trainer(torch.nn.Linear(1, 1), args)


def test_launched_unknown_backend_is_named_by_its_option(tmp_path, launch):
    """The script has not set the argument."""
    launch(dynamo(BACKEND="inducter"))
    args = arguments(tmp_path, use_cpu=True)
    message = r"^dynamo_backend of the launcher \(ACCELERATE_DYNAMO_BACKEND='inducter'\).*inductor"
    with pytest.raises(ValueError, match=message):
        Trainer(torch.nn.Linear(1, 1), args)

    args = arguments(tmp_path, use_cpu=True, torch_compile=True, torch_compile_backend="inducter")
    with pytest.raises(ValueError, match=r"^torch_compile_backend='inducter'"):
        Trainer(torch.nn.Linear(1, 1), args)


def test_launched_rows_with_an_effect_are_all_tried():
    tried = {name for environment, *_ in FILLED + REFUSALS for name in environment}
    with_effect = {name for name, row in VARIABLES.items() if row.argument or row.refused}
    assert with_effect - tried == {"ACCELERATE_DEEPSPEED_CONFIG_FILE"}, "which has a separate test"


@pytest.mark.parametrize("name", [name for name, row in VARIABLES.items() if row.flag])
def test_launched_switch_that_is_neither_on_nor_off_is_refused(tmp_path, launch, name):
    """Alone too: not every switch sets an argument."""
    launch({name: "maybe"})
    with pytest.raises(ValueError, match=f"{name}='maybe'.* is neither true nor false"):
        arguments(tmp_path)


def test_switches_that_are_off_change_nothing(tmp_path, launch):
    launch(dict.fromkeys((*fsdp(), *deepspeed(), *groups()), "false"))
    launch(
        {"FSDP_VERSION": "2", "ACCELERATE_DYNAMO_BACKEND": "NO", "PARALLELISM_CONFIG_TP_SIZE": "2"}
    )
    args, plain = arguments(tmp_path), TrainingArguments(str(tmp_path))
    assert [getattr(args, name) for name in launched.FIELDS] == [
        getattr(plain, name) for name in launched.FIELDS
    ]


SAID = [
    (
        fsdp(VERSION="2", OFFLOAD_PARAMS="true"),
        {"fsdp_config": {"cpu_offload": False}},
        ("full_shard", 2, None, False),
    ),
    (layers(VERSION="2"), {"fsdp": "shard_grad_op"}, ("shard_grad_op", 1, "layers", False)),
]


@pytest.mark.parametrize(("environment", "given", "expected"), SAID, ids=str)
def test_fsdp_of_the_script_takes_precedence(tmp_path, launch, environment, given, expected):
    """A script that asks for FSDP says its version, too; the launcher adds what the reference
    adds then.
    """
    launch(environment)
    args = arguments(tmp_path, use_cpu=True, **given)
    settings = at(args, "settings")
    assert (settings.sharding, settings.version, settings.wrap, settings.offload) == expected


def test_launched_arguments_of_the_script_take_precedence(tmp_path, launch):
    launch({**deepspeed(DEEPSPEED_ZERO_STAGE="3"), **groups(TP_SIZE="4")})
    launch({"ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_DYNAMO_BACKEND": "EAGER"})
    config = {
        "deepspeed": {"zero_optimization": {"stage": 1}},
        "parallelism_config": {"dp_replicate_size": 1},
    }
    args = arguments(tmp_path, use_cpu=True, bf16=True, torch_compile_backend="aot_eager", **config)
    assert (args.deepspeed, at(args, "parallelism_config.tp_size")) == (config["deepspeed"], 1)
    assert (args.mixed_precision, args.torch_compile_backend) == ("bf16", "aot_eager")


def test_fsdp_is_left_out_where_there_is_nothing_to_shard_over(
    tmp_path, launch, monkeypatch, caplog
):
    """The launcher asks for FSDP beside any parallelism_config, and for one process."""
    launch({**fsdp(VERSION="2"), **groups(TP_SIZE="4")})
    assert arguments(tmp_path, use_cpu=True).fsdp == []
    assert "use_fsdp of the launcher (ACCELERATE_USE_FSDP='true') has no effect" in caplog.text
    monkeypatch.delenv("ACCELERATE_USE_PARALLELISM_CONFIG")
    monkeypatch.setattr(launched, "launched_world_size", lambda: 1)
    assert arguments(tmp_path, use_cpu=True).fsdp == []


MORE = [
    {},
    {"TRANSFORMER_CLS_TO_WRAP": "A,B", "ACTIVATION_CHECKPOINTING": "true"},
    {"VERSION": "1", "SHARDING_STRATEGY": "SHARD_GRAD_OP", "BACKWARD_PREFETCH": "BACKWARD_PRE"},
    {"VERSION": "1", "SHARDING_STRATEGY": "NO_SHARD", "USE_ORIG_PARAMS": "true"},
]


@pytest.mark.parametrize("more", MORE, ids=str)
def test_launched_fsdp_settings_equal_accelerate(tmp_path, launch, more):
    from accelerate.utils import FullyShardedDataParallelPlugin

    launch(layers(**{"VERSION": "2", "SYNC_MODULE_STATES": "false", **more}))
    plugin: Any = FullyShardedDataParallelPlugin()
    settings = at(arguments(tmp_path, use_cpu=True), "settings")
    assert settings.version == plugin.fsdp_version
    assert plugin.state_dict_type.name.lower().startswith(settings.state_dict_type)
    assert settings.layers == (
        plugin.transformer_cls_names_to_wrap and tuple(plugin.transformer_cls_names_to_wrap)
    )
    assert settings.activation_checkpointing == plugin.activation_checkpointing
    if settings.version == 2:
        assert settings.reshard_after_forward == plugin.reshard_after_forward
    else:
        assert settings.sharding == plugin.sharding_strategy.name.lower()
        assert settings.backward_prefetch == (
            plugin.backward_prefetch and plugin.backward_prefetch.name.lower()
        )
        assert ("USE_ORIG_PARAMS" not in more) or settings.use_orig_params == plugin.use_orig_params


MORE_OF_MORE = [
    {},
    {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3", "ACCELERATE_MIXED_PRECISION": "bf16"},
    {
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_GRADIENT_CLIPPING": "1.0",
    },
]


@pytest.mark.parametrize("more", MORE_OF_MORE, ids=str)
def test_launched_deepspeed_configuration_equals_accelerate(tmp_path, launch, more):
    from accelerate.utils import DeepSpeedPlugin

    launch({**deepspeed(), **more})
    plugin, args = DeepSpeedPlugin(), arguments(tmp_path, use_cpu=True)
    plugin.set_mixed_precision(args.mixed_precision)
    theirs, ours = plugin.deepspeed_config, at(args, "hf_deepspeed_config.config")
    assert (
        ours["zero_optimization"].items() <= {**theirs["zero_optimization"], **parts(ours)}.items()
    )
    assert all(ours[half]["enabled"] == theirs[half]["enabled"] for half in ("fp16", "bf16"))
    assert ours["gradient_clipping"] == args.max_grad_norm == 1.0


def parts(config):
    """Devices that are none are left out here, which says the same."""
    sections = {
        key: value
        for key, value in config["zero_optimization"].items()
        if key.startswith("offload")
    }
    assert all(section["device"] != "none" for section in sections.values())
    return sections


def test_launched_deepspeed_file(tmp_path, launch):
    path = tmp_path / "zero.json"
    zero = {
        "stage": "auto",
        "offload_param": {"device": "auto"},
        "stage3_gather_16bit_weights_on_model_save": "auto",
    }
    path.write_text(json.dumps({"zero_optimization": zero, "gradient_clipping": "auto"}))
    more = {"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(path), "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}
    more |= {"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "A"}
    launch(
        {
            **deepspeed(),
            **more,
            "ACCELERATE_CONFIG_DS_FIELDS": "deepspeed_config_file,zero3_init_flag",
        }
    )
    zero = {
        "stage": 1,
        "offload_param": {"device": "none"},
        "stage3_gather_16bit_weights_on_model_save": False,
    }
    expected = {
        "zero_optimization": {**zero, "leaf_module": {"classes": ["A"]}},
        "gradient_clipping": "auto",
    }
    assert arguments(tmp_path, use_cpu=True).deepspeed == expected
    launch({"ACCELERATE_CONFIG_DS_FIELDS": "deepspeed_config_file,zero_stage,mixed_precision"})
    with pytest.raises(
        ValueError, match=r"settings of the launcher into the file: mixed_precision, zero_stage"
    ):
        arguments(tmp_path, use_cpu=True)


def test_an_object_that_is_no_parallelism_config_is_refused(tmp_path):
    value = SimpleNamespace(dp_shard_size=1)
    with pytest.raises(ValueError, match=r"parallelism_config=.*pass a dict"):
        arguments(tmp_path, parallelism_config=value)
