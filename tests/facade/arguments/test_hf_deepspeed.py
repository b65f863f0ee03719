"""Answer what scripts ask about DeepSpeed before there is an engine: the configuration in force
and its values.
"""

import gc
import importlib
from types import SimpleNamespace

import pytest

from helpers.trainer.tiny_trainings import arguments

zero = importlib.import_module("lightrainer.facade.arguments.hf_deepspeed")
STAGE3 = {
    "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "cpu"},
        "round_robin_gradients": False,
    }
}


@pytest.fixture(autouse=True)
def _nothing_in_force():
    zero.unset_hf_deepspeed_config()
    yield
    zero.unset_hf_deepspeed_config()


@pytest.fixture
def reference():
    """The base of the reference's class, which has all of its questions."""
    return pytest.importorskip("accelerate.utils.deepspeed").HfDeepSpeedConfig


QUESTIONS = ["is_zero2", "is_zero3", "is_offload"]
KEYS = [
    "zero_optimization.stage",
    "zero_optimization.offload_param.device",
    "zero_optimization",
    "nothing.there",
]
KEYS += ["zero_optimization.round_robin_gradients"]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_hf_deepspeed_config_answers_as_that_of_the_reference(reference, stage):
    settings = {"zero_optimization": {**STAGE3["zero_optimization"], "stage": stage}}
    theirs, ours = reference(settings), zero.HfDeepSpeedConfig(settings)
    assert [getattr(ours, name)() for name in QUESTIONS] == [
        getattr(theirs, name)() for name in QUESTIONS
    ]
    for key in KEYS:
        assert ours.get_value(key) == theirs.get_value(key)
        assert (ours.is_true(key), ours.is_false(key)) == (
            theirs.is_true(key),
            theirs.is_false(key),
        )
        assert ours.find_config_node(key) == theirs.find_config_node(key)
    for config in (theirs, ours):
        config.del_config_sub_tree("zero_optimization.offload_param")
        with pytest.raises(ValueError, match="offload_param"):
            config.del_config_sub_tree("zero_optimization.offload_param", must_exist=True)
    assert ours.config == theirs.config


def test_hf_deepspeed_config_is_in_force_as_long_as_it_is_held():
    assert zero.deepspeed_config() is None
    held = zero.HfDeepSpeedConfig(STAGE3)
    assert zero.deepspeed_config() is held.config
    del held
    gc.collect()
    assert zero.deepspeed_config() is None


def test_arguments_put_theirs_in_force_and_later_ones_without_take_it_away(tmp_path):
    args = arguments(tmp_path, deepspeed={**STAGE3, "train_batch_size": "auto"})
    assert zero.deepspeed_config() is args.hf_deepspeed_config.config
    assert zero.deepspeed_config()["train_batch_size"] == args.train_batch_size * args.world_size
    assert arguments(tmp_path).hf_deepspeed_config is None
    assert zero.deepspeed_config() is None
    script_config = zero.HfDeepSpeedConfig(STAGE3)
    arguments(tmp_path)
    assert zero.deepspeed_config() is script_config.config


def test_hf_deepspeed_without_deepspeed_partitions_no_model(monkeypatch):
    """Negative control: a stage in which models are whole."""
    calls = []
    monkeypatch.setattr(zero, "prepare_deepspeed", calls.append)
    monkeypatch.setattr(zero, "is_deepspeed_available", lambda: False)
    held = zero.HfDeepSpeedConfig(STAGE3)
    assert not zero.is_deepspeed_zero3_enabled()
    monkeypatch.setattr(zero, "is_deepspeed_available", lambda: True)
    assert zero.is_deepspeed_zero3_enabled()
    assert calls == ["cpu"]
    del held
    whole = zero.HfDeepSpeedConfig({"zero_optimization": {"stage": 2}})
    assert zero.deepspeed_config() is whole.config
    assert not zero.is_deepspeed_zero3_enabled()


def test_finalize_names_values_that_need_a_hidden_size(tmp_path):
    """Without one they stayed "auto", silently."""
    key = "zero_optimization.reduce_bucket_size"
    settings = {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    config = zero.HfTrainerDeepSpeedConfig(settings)
    with pytest.raises(ValueError, match=f"{key} cannot be filled in.*hidden_sizes"):
        config.trainer_config_finalize(arguments(tmp_path), object(), 10)

    model = SimpleNamespace(config=SimpleNamespace(hidden_sizes=[2, 4]))
    config.trainer_config_finalize(arguments(tmp_path), model, 10)
    assert config.get_value(key) == 16
