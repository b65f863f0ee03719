"""`fsdp` and `fsdp_config`: every documented key and word, and errors for others."""

import dataclasses
import os
import re

import pytest

from helpers.trainer.tiny_trainings import arguments
from lightrainer import HfArgumentParser, TrainingArguments
from lightrainer.facade.arguments.exports import LOADING_VARIABLES
from lightrainer.facade.arguments.fsdp_config import OLD_NAMES, READERS, REFUSED, read_fsdp

READ = [
    ("full_shard", {}, {"sharding": "full_shard"}),
    ("full_shard auto_wrap", {}, {"wrap": "layers", "layers": None}),
    ("full_shard auto_wrap", {"min_num_params": "5"}, {"wrap": "size", "min_num_params": 5}),
    (
        "full_shard",
        {"transformer_layer_cls_to_wrap": ["A", "B"]},
        {"wrap": "layers", "layers": ("A", "B")},
    ),
    ("full_shard", {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, {"wrap": "layers"}),
    ("full_shard", {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 3}, {"wrap": "size"}),
    ("full_shard", {"version": "2"}, {"version": 2}),
    ("full_shard", {"cpu_offload": True}, {"offload": True}),
    ("full_shard", {"backward_prefetch": "BACKWARD_POST"}, {"backward_prefetch": "backward_post"}),
    ("full_shard", {"forward_prefetch": "true"}, {"forward_prefetch": True}),
    ("full_shard", {"limit_all_gathers": False}, {"limit_all_gathers": False}),
    ("full_shard", {"use_orig_params": "False"}, {"use_orig_params": False}),
    ("full_shard", {"sync_module_states": False}, {"sync_module_states": False}),
    (
        "full_shard auto_wrap",
        {"activation_checkpointing": True},
        {"activation_checkpointing": True},
    ),
    ("full_shard", {"cpu_ram_efficient_loading": "true"}, {"cpu_ram_efficient_loading": True}),
    ("auto_wrap", {"reshard_after_forward": "SHARD_GRAD_OP"}, {"sharding": "shard_grad_op"}),
    ("auto_wrap", {"reshard_after_forward": 4}, {"sharding": "hybrid_shard"}),
    ("full_shard", {"version": 2, "reshard_after_forward": False}, {"sharding": "shard_grad_op"}),
    (
        "hybrid_shard",
        {"version": 2, "reshard_after_forward": "false"},
        {"sharding": "hybrid_shard_zero2"},
    ),
    ("full_shard", {"state_dict_type": "SHARDED_STATE_DICT"}, {"state_dict_type": "sharded"}),
    ("full_shard", {"xla": True, "xla_fsdp_v2": True, "xla_fsdp_grad_ckpt": True}, {"xla": True}),
    ("full_shard", {"xla": True, "xla_fsdp_settings": {"compute_dtype": "float16"}}, {"xla": True}),
    (True, {}, {"version": 2, "sharding": "full_shard", "wrap": "layers", "layers": None}),
    (
        True,
        {"reshard_after_forward": False, "cpu_offload": True},
        {"sharding": "shard_grad_op", "offload": True},
    ),
    (
        True,
        {"version": 1, "reshard_after_forward": "shard_grad_op"},
        {"version": 1, "sharding": "shard_grad_op"},
    ),
]


@pytest.mark.parametrize(("words", "config", "expected"), READ, ids=str)
def test_fsdp_config_word_or_key_has_its_effect(tmp_path, words, config, expected):
    args = arguments(tmp_path, fsdp=words, fsdp_config=config)
    settings, problems = read_fsdp(args.fsdp, args.fsdp_config)
    assert problems == []
    assert {name: getattr(settings, name) for name in expected} == expected


LATER = [
    ("full_shard", {}, {"version": 2, "wrap": "layers"}),
    ("offload", {}, {"version": 2, "offload": True, "wrap": "layers"}),
    (
        "shard_grad_op",
        {"transformer_layer_cls_to_wrap": ["A"]},
        {"sharding": "shard_grad_op", "layers": ("A",)},
    ),
    (
        "shard_grad_op",
        {"version": 1},
        {"version": 1, "sharding": "shard_grad_op", "wrap": "layers"},
    ),
]


@pytest.mark.parametrize(("words", "config", "expected"), LATER, ids=str)
def test_words_mean_version_2_where_a_later_transformers_is_followed(
    tmp_path, monkeypatch, words, config, expected
):
    monkeypatch.setenv("LIGHTRAINER_FOLLOW", "5.23.0")
    test_fsdp_config_word_or_key_has_its_effect(tmp_path, words, config, expected)


def test_true_survives_a_copy_and_a_command_line(tmp_path):
    """A library rebuilds the arguments from those it got; later versions accept `--fsdp` without
    a value.
    """
    args = arguments(tmp_path, fsdp=True)
    assert dataclasses.replace(args).fsdp is args.fsdp is True
    parse = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses
    assert [parse(["--fsdp", *words])[0].fsdp for words in ([], ["true"])] == [True, True]
    assert parse(["--fsdp", "full_shard"])[0].fsdp == ["full_shard"]


def test_fsdp_config_keys_are_all_tried():
    tried = {key for _, config, _ in READ for key in config}
    assert tried == set(READERS)
    assert not set(READERS) & set(REFUSED)
    assert set(OLD_NAMES.values()) <= set(READERS)


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_deprecated_spellings_work_with_a_warning(tmp_path, caplog, old, new):
    values = {
        "reshard_after_forward": "shard_grad_op",
        "cpu_offload": True,
        "backward_prefetch": "backward_post",
    }
    values |= {"transformer_layer_cls_to_wrap": ["A"]}
    args = arguments(tmp_path, fsdp="auto_wrap", fsdp_config={f"fsdp_{old}": values[new]})
    assert args.fsdp_config[new] == values[new]
    assert f"fsdp_config[{old!r}] is deprecated: it is called {new!r}" in caplog.text


REFUSALS = [
    (
        "full_shard",
        {"min_num_param": 1},
        "'min_num_param', which is not known. Did you mean 'min_num_params'",
    ),
    ("full_shard", {"version": 3}, "fsdp_config['version']=3 must be 1 or 2"),
    (
        "full_shard",
        {"backward_prefetch": "pre"},
        "'backward_pre', 'backward_post' or 'no_prefetch'",
    ),
    (
        "full_shard",
        {"transformer_layer_cls_to_wrap": [1]},
        "a list of class names, such as ['GPT2Block']",
    ),
    ("full_shard", {"xla_fsdp_settings": "x"}, "a dict of options of XlaFullyShardedDataParallel"),
    ("full_shard", {"reshard_after_forward": True}, "pass fsdp_config['version']=2"),
    ("full_shard", {"reshard_after_forward": "hybrid_shard"}, "fsdp='full_shard' and fsdp_config"),
    (
        "auto_wrap",
        {"version": 2, "reshard_after_forward": "full_shard"},
        "must be True or False in version 2",
    ),
    ("no_shard", {"version": 2}, "remove fsdp; the ranks then train with DDP"),
    ("full_shard", {"auto_wrap_policy": "SIZE_BASED_WRAP"}, "needs min_num_params above 0"),
    ("full_shard", {"activation_checkpointing": True}, "add 'auto_wrap' to fsdp"),
    (
        "full_shard",
        {"cpu_ram_efficient_loading": True, "sync_module_states": False},
        "needs sync_module_states=True",
    ),
    *(
        ("full_shard", {key: "x"}, f"fsdp_config['{key}']='x' has no counterpart in Lightning")
        for key in REFUSED
    ),
]


@pytest.mark.parametrize(("words", "config", "message"), REFUSALS, ids=str)
def test_fsdp_config_that_cannot_be_is_refused_with_what_to_do(tmp_path, words, config, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainingArguments(str(tmp_path / "out"), fsdp=words, fsdp_config=config, use_cpu=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", REFUSED)
def test_fsdp_config_accepts_disabled_settings(key):
    assert read_fsdp("full_shard", {key: False})[1] == []


SHARDED = {"fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
COMBINATIONS = [
    (
        {"gradient_checkpointing": True, "fsdp_config": {"activation_checkpointing": True}},
        "Use one",
    ),
    (
        {"save_only_model": True, "load_best_model_at_end": True, "eval_strategy": "steps"},
        "Remove one of them",
    ),
    ({"save_only_model": True, **SHARDED}, "Set it to 'FULL_STATE_DICT'"),
    ({"save_on_each_node": True, **SHARDED}, "save_on_each_node=True"),
    ({"parallelism_config": {"dp_shard_size": 2}}, "Set fsdp_config={'version': 2}"),
    (
        {"parallelism_config": {"tp_size": 2}, "fsdp_config": {"version": 2}},
        "nothing to shard over",
    ),
    (
        {"parallelism_config": {"dp_shard_size": 2}, "fsdp_config": {"xla": True}},
        "Remove parallelism_config",
    ),
]


@pytest.mark.parametrize(("changes", "message"), COMBINATIONS, ids=str)
def test_impossible_combinations_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        arguments(tmp_path, fsdp="full_shard auto_wrap", **changes)


WARNINGS = [
    (
        {"fsdp_config": {"min_num_params": 3}},
        "fsdp_config has no effect (min_num_params)",
    ),
    (
        {"fsdp": "full_shard", "fsdp_config": {"version": 2, "use_orig_params": True}},
        "always keeps the original param",
    ),
    (
        {"fsdp": "full_shard", "fsdp_config": {"xla_fsdp_v2": True}},
        "xla_fsdp_v2 of fsdp_config have an effect only with fsdp_config['xla']",
    ),
    (
        {"fsdp": "full_shard", "fsdp_config": {"use_orig_params": False}, "weight_decay": 0.1},
        "weight_decay=0.1",
    ),
    (
        {"fsdp": "full_shard", "gradient_checkpointing": True},
        "fsdp_config['activation_checkpointing']=True does not",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WARNINGS, ids=str)
def test_fsdp_config_warns_of_settings_without_effect(tmp_path, caplog, changes, message):
    arguments(tmp_path, **changes)
    assert message in caplog.text
    caplog.clear()
    arguments(tmp_path)
    assert "fsdp" not in caplog.text


def test_fsdp_config_reading_on_one_process_is_opt_in(tmp_path, monkeypatch):
    """In the environment, where `from_pretrained` of transformers looks."""
    for name in LOADING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    arguments(tmp_path, fsdp="full_shard", fsdp_config={"cpu_ram_efficient_loading": True})
    assert [os.environ[name] for name in LOADING_VARIABLES] == ["true", "true"]
    arguments(tmp_path, fsdp="full_shard")
    assert not set(LOADING_VARIABLES) & set(os.environ)
    monkeypatch.setenv(LOADING_VARIABLES[1], "true")  # what is set already stays
    arguments(tmp_path)
    assert os.environ[LOADING_VARIABLES[1]] == "true"
