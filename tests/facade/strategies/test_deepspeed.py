"""The configuration of DeepSpeed: filled in as the reference does it, contradictions found,
never run without it.
"""

import base64
import copy
import importlib
import json
import re
from types import SimpleNamespace

import pytest

from helpers.trainer.tiny_trainings import arguments, make_trainer
from lightrainer.facade.arguments.deepspeed_config import (
    fill_from_arguments,
    fill_from_run,
    load_deepspeed,
    open_keys,
    with_open_batches,
)
from lightrainer.facade.arguments.hf_deepspeed import HfTrainerDeepSpeedConfig
from lightrainer.facade.strategies.plan import translate

strategy_module = importlib.import_module("lightrainer.facade.strategies.deepspeed")

ZERO = {"zero_optimization": {"stage": 2}}
AUTO = {
    **dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        "auto",
    ),
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": dict.fromkeys(
            ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"
        ),
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "nvme", "nvme_path": "/disk"},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
    },
}


def changed(config, **changes):
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *sections, key = path.split("__")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = value
    return config


CONFIGS = {
    "auto": AUTO,
    "stage 2": changed(AUTO, zero_optimization__stage=2),
    "stage 0": {
        "zero_optimization": {"stage": 0, "reduce_bucket_size": "auto"},
        "train_batch_size": "auto",
    },
    "numbers": changed(AUTO, zero_optimization__reduce_bucket_size=5, gradient_clipping=0.5),
    "same values": {
        "optimizer": {"params": {"lr": 3e-4}},
        "gradient_accumulation_steps": 4,
        **ZERO,
    },
    "other values": {
        "optimizer": {"params": {"lr": 1.0, "betas": [0.5, 0.6], "eps": 1, "weight_decay": 7}},
        "scheduler": {
            "params": {"warmup_max_lr": 2.0, "total_num_steps": 3, "warmup_num_steps": 4}
        },
        **{
            "train_batch_size": 1,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 3,
        },
        **{
            "gradient_clipping": 0.25,
            "bf16": {"enabled": False},
            "fp16": {"enabled": True},
            **ZERO,
        },
    },
    "sections missing": ZERO,
}
ARGUMENTS = {
    "plain": {},
    "all": {
        **{
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 4,
            "max_grad_norm": 0.5,
            "bf16": True,
        },
        **{
            "learning_rate": 3e-4,
            "adam_beta1": 0.8,
            "adam_beta2": 0.95,
            "adam_epsilon": 1e-7,
            "weight_decay": 0.1,
        },
        "save_on_each_node": True,
    },
    "fp16": {"fp16": True},
    "evaluation": {"bf16_full_eval": True},
}
MODELS = {
    "wide": SimpleNamespace(config=SimpleNamespace(hidden_size=33)),
    "several": SimpleNamespace(config=SimpleNamespace(hidden_sizes=[8, 64, 16])),
}
STEPS = 77


def reference():
    """The reference's class, on the base that it has where deepspeed is installed."""
    transformers = pytest.importorskip("transformers.integrations.deepspeed")
    base = pytest.importorskip("accelerate.utils.deepspeed").HfDeepSpeedConfig
    names = (
        "is_auto",
        "fill_match",
        "fill_only",
        "trainer_config_process",
        "trainer_config_finalize",
        "dtype",
    )
    methods = {name: vars(transformers.HfTrainerDeepSpeedConfig)[name] for name in names}
    return type("Reference", (base,), methods)


def of_reference(config, args, model, steps):
    """Return the reference's configuration, and the keys that contradict the arguments."""
    hf_config = reference()(config)
    hf_config._dtype, hf_config.mismatches = None, []
    hf_config.trainer_config_process(args)
    try:
        hf_config.trainer_config_finalize(args, model, steps)
    except ValueError as error:
        if "mismatch" not in str(error):
            raise
    return hf_config.config, [
        line.removeprefix("- ds ").partition("=")[0] for line in hf_config.mismatches
    ]


@pytest.mark.parametrize("numbers", [{}, {"bf16": True}, {"fp16": True}], ids=str)
def test_methods_of_the_config_are_those_of_the_reference(tmp_path, numbers):
    """Scripts fill in their own values."""
    results = []
    for cls in (reference(), HfTrainerDeepSpeedConfig):
        config = cls({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "a": {"b": "auto"}})
        config._dtype, config.mismatches = None, []
        with pytest.raises(ValueError, match=r"trainer_config_process\("):
            config.dtype()
        config.trainer_config_process(arguments(tmp_path, **numbers))
        config.fill_only("a.b", 1, "b")
        config.fill_only("a.b", 2, "b")
        config.fill_match("a.c", 1, "c")
        contradicted = len(config.mismatches)
        config.fill_match("a.b", 3, "b")
        results.append((config.config, config.dtype(), len(config.mismatches) - contradicted))
    assert results[0] == results[1]
    assert results[0][0]["a"] == {"b": 1}
    assert results[0][2] == 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("given", ARGUMENTS)
@pytest.mark.parametrize("config", CONFIGS)
def test_deepspeed_config_is_filled_in_as_in_the_reference(tmp_path, config, given, model):
    args = arguments(tmp_path, warmup_steps=5, **ARGUMENTS[given])
    expected, contradicted = of_reference(CONFIGS[config], args, MODELS[model], STEPS)
    filled = load_deepspeed(CONFIGS[config])
    mismatches = fill_from_arguments(filled, args, args.world_size)
    mismatches += fill_from_run(filled, args, MODELS[model], STEPS)
    assert filled == expected
    assert [line.partition(" is ")[0] for line in mismatches] == contradicted


def test_batches_can_be_left_to_the_arguments():
    """Where a training resumes with other processes, see `ElasticResumption`."""
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 0.5,
    }
    opened = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 0.5,
    }
    assert with_open_batches(json.dumps(config)) == opened
    assert with_open_batches(None) is None
    assert with_open_batches({}) == {}


def test_deepspeed_config_reads_every_form(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(AUTO))
    text = json.dumps(AUTO)
    for source in (AUTO, str(path), path, text, base64.urlsafe_b64encode(text.encode()).decode()):
        assert load_deepspeed(source) == AUTO
        assert translate(arguments(tmp_path, deepspeed=source)).strategy.name == "DeepSpeedStrategy"


KEYS = [
    (
        {"zero_optimisation": {}},
        "'zero_optimisation' is not a key of DeepSpeed's configuration. Did you mean 'zero_opt",
    ),
    ({"amp": {"enabled": True}}, "amp is not supported"),
    ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation"),
    ({"sequence_parallel_size": 2}, "sequence_parallel_size"),
    ({"checkpoint": {"writer": {"type": "fast"}}}, "checkpoint.writer is not supported"),
    (
        {"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}},
        "zero_optimization.zenflow is not supported",
    ),
    ({"tensor_parallel": {"autotp_size": 2}}, "split layers with parallelism_config"),
    (
        {"optimizer": {"params": {"lr": 1}}},
        "optimizer.params.lr is 1 in the configuration, but learning_rate",
    ),
    (
        {"bf16": {"enabled": True}},
        "bf16.enabled is True in the configuration, but bf16 or bf16_full_eval is",
    ),
]
BESIDE = [
    ({"fsdp": "full_shard"}, "fsdp='full_shard' and deepspeed "),
    ({"parallelism_config": {"tp_size": 2}}, "DeepSpeed forms its own groups"),
    (
        {"save_only_model": True, "load_best_model_at_end": True, "eval_strategy": "no"},
        "cannot be combined with deepspeed",
    ),
    ({"auto_find_batch_size": True}, "auto_find_batch_size=True and deepspeed"),
]
BAD = [
    *[({**ZERO, **keys}, {}, message) for keys, message in KEYS],
    *[({"zero_optimization": {"stage": 3}}, changes, message) for changes, message in BESIDE],
    (ZERO, {"auto_find_batch_size": True}, "auto_find_batch_size=True and deepspeed"),
    ("no/such/file.json", {}, "deepspeed='no/such/file.json': the file does not exist"),
    ({"train_batch_size": 8}, {}, "no section zero_optimization"),
    ({"zero_optimization": {"stage": 4}}, {}, "zero_optimization.stage=4 must be 0, 1, 2 or 3"),
    (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        {},
        "needs zero_optimization.stage 3",
    ),
    (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}},
        {},
        "Choose from: none, cpu, nvme",
    ),
    (3, {}, "deepspeed=3 is an int; pass a dict, or the path of a JSON file"),
]


@pytest.mark.parametrize(("config", "changes", "message"), BAD, ids=str)
def test_deepspeed_config_that_cannot_be_is_refused_with_what_to_do(
    tmp_path, config, changes, message
):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        arguments(tmp_path, deepspeed=config, **changes)


def test_deepspeed_plan_shows_the_whole_configuration(tmp_path):
    """Leave "auto" what the model and the length of the run decide, until they are known."""
    args = arguments(tmp_path, deepspeed=AUTO, learning_rate=3e-4)
    strategy = translate(args).strategy
    assert "offload_optimizer={device=cpu, pin_memory=True}" in str(strategy.rows())
    assert len(strategy.open_keys) == 5
    complete = translate(args, model=MODELS["wide"], steps=50).strategy
    assert complete.open_keys == []
    assert complete.shards_weights
    assert not translate(arguments(tmp_path, deepspeed=ZERO)).strategy.shards_weights


def engine_config(tmp_path, config, **changes):
    """Return the configuration that DeepSpeed itself gets."""
    return translate(
        arguments(tmp_path, deepspeed=config, **changes), model=MODELS["wide"]
    ).strategy.engine_config()


def test_deepspeed_arguments_fill_the_configuration(tmp_path):
    config = engine_config(
        tmp_path, ZERO, gradient_accumulation_steps=3, max_grad_norm=0.5, bf16=True
    )
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (
        4,
        3,
    )
    assert (config["gradient_clipping"], config["bf16"]) == (0.5, {"enabled": True})
    assert engine_config(tmp_path, {**ZERO, "gradient_clipping": 1.0})["gradient_clipping"] == 1.0


def test_deepspeed_on_the_cpu_compiles_no_optimizer(tmp_path):
    """DeepSpeed's own fused Adam would be; that of torch gives the same numbers. What the user
    says stays.
    """
    assert engine_config(tmp_path, AUTO, max_steps=5)["optimizer"]["params"]["torch_adam"] is True
    config = changed(AUTO, optimizer__params__torch_adam=False)
    assert (
        engine_config(tmp_path, config, max_steps=5)["optimizer"]["params"]["torch_adam"] is False
    )
    assert engine_config(tmp_path, ZERO)["zero_force_ds_cpu_optimizer"] is False
    assert (
        engine_config(tmp_path, {**ZERO, "zero_force_ds_cpu_optimizer": True})[
            "zero_force_ds_cpu_optimizer"
        ]
        is True
    )


def test_deepspeed_without_zero_clips_as_without_deepspeed(tmp_path):
    """DeepSpeed has no norm to ask for there."""
    stage_0 = {"zero_optimization": {"stage": 0}}
    assert engine_config(tmp_path, stage_0)["gradient_clipping"] == 0.0
    assert engine_config(tmp_path, stage_0, bf16=True)["gradient_clipping"] == 1.0


@pytest.mark.parametrize(
    ("given", "whole"), [(None, True), ("auto", True), (True, True), (False, False)]
)
def test_models_are_saved_whole_unless_the_configuration_says_no(tmp_path, given, whole):
    section = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": given}
    section = {key: value for key, value in section.items() if value is not None}
    strategy = translate(arguments(tmp_path, deepspeed={"zero_optimization": section})).strategy
    assert strategy.gathers_on_save is whole


def test_deepspeed_config_accepts_disabled_sections(tmp_path):
    off = {
        "amp": {"enabled": False},
        "elasticity": {"enabled": False},
        "sequence_parallel_size": 1,
        "pipeline": {},
    }
    passed = {
        "flops_profiler": {"enabled": True},
        "aio": {"block_size": 1},
        "wall_clock_breakdown": True,
    }
    arguments(tmp_path, deepspeed={**ZERO, **off, **passed, "managed_gradient_accumulation": True})


def test_contradictions_with_the_run_are_found(tmp_path):
    config = changed(AUTO, scheduler__params__total_num_steps=3)
    args = arguments(tmp_path, deepspeed=config)
    with pytest.raises(
        ValueError,
        match="total_num_steps is 3 in the configuration, but the number of steps is 50",
    ):
        translate(args, steps=50)


def test_deepspeed_missing_package_gives_advice(tmp_path, monkeypatch):
    """The plan can be looked at all the same."""
    monkeypatch.setattr(strategy_module, "is_installed", lambda name: False)
    trainer = make_trainer(tmp_path, deepspeed=ZERO)
    assert "DeepSpeedStrategy" in repr(trainer.plan)
    for run in (trainer.train, trainer.evaluate):
        with pytest.raises(ImportError, match="pip install --no-build-isolation 'deepspeed"):
            run()


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ("0.18.9", True),
        ("0.9.5+cu121", True),
        ("0.19.4", True),
        ("0.19.5", False),
        ("0.19.8+unknown", False),
        ("1.0.0", False),
        (None, False),
    ],
)
def test_require_deepspeed_refuses_old_versions(monkeypatch, found, refused):
    """None is the version of one that was built in place."""
    monkeypatch.setattr(strategy_module, "is_installed", lambda name: True)
    monkeypatch.setattr(strategy_module, "installed", lambda name: found)
    if not refused:
        strategy_module.require_deepspeed()
        return
    with pytest.raises(
        ImportError,
        match=rf"{re.escape(found)} is installed.*wrong gradients.*'deepspeed>=0\.19\.5'",
    ):
        strategy_module.require_deepspeed()


def test_deepspeed_remaining_auto_values_are_refused(tmp_path):
    """An evaluation can do without: it leaves those keys to DeepSpeed."""
    strategy = translate(arguments(tmp_path, deepspeed=AUTO)).strategy
    with pytest.raises(ValueError, match=r"reduce_bucket_size.*Write numbers"):
        strategy.require_filled()
    assert open_keys(strategy.engine_config()) == []
