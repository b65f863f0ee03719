"""Optimizers that a strategy cannot give what they demand are refused, however they are passed."""

import pytest
import torch

from helpers.trainer.tiny_trainings import arguments, make_trainer, tiny
from lightrainer import Trainer
from lightrainer.facade.strategies.deepspeed import DeepSpeed
from lightrainer.facade.strategies.fsdp import FSDP
from lightrainer.facade.strategies.model_parallel import ModelParallel
from lightrainer.lightning_modules.common.enums import OptimizerNames
from lightrainer.lightning_modules.optim import (
    Adafactor,
    OptimizerRequirements,
    optimizer_requirements,
)

WHOLE = OptimizerRequirements.FULL_PARAMETERS
OWN_STEPS = OptimizerRequirements.OWN_STEPS
DEMANDS = {
    "adafactor": WHOLE,
    "galore_adamw": WHOLE | OWN_STEPS,
    "galore_adamw_8bit": WHOLE | OWN_STEPS,
    "galore_adafactor": WHOLE | OWN_STEPS,
    "galore_adamw_layerwise": WHOLE | OWN_STEPS,
    "galore_adamw_8bit_layerwise": WHOLE | OWN_STEPS,
    "galore_adafactor_layerwise": WHOLE | OWN_STEPS,
    "lomo": WHOLE | OWN_STEPS,
    "adalomo": WHOLE | OWN_STEPS,
    "grokadamw": WHOLE,
    "schedule_free_radam": OWN_STEPS,
    "schedule_free_adamw": OWN_STEPS,
    "schedule_free_sgd": OWN_STEPS,
    "apollo_adamw": WHOLE | OWN_STEPS,
    "apollo_adamw_layerwise": WHOLE | OWN_STEPS,
    "stable_adamw": WHOLE,
}
PATHS = ["torch.optim.Adafactor", *(["torch.optim.Muon"] if hasattr(torch.optim, "Muon") else [])]
PATHS_OF_LIBRARIES = [
    "pytorch_optimizer.Lamb",
    "bitsandbytes.optim.LARS8bit",
    "pytorch_optimizer.StableAdamW",
]


def demanding(demand):
    return [name for name, requirements in DEMANDS.items() if demand in requirements]


def fsdp(**changes):
    options = {
        "auto_wrap_policy": None,
        "use_orig_params": False,
        "sharding_strategy": "FULL_SHARD",
    }
    return FSDP("FSDPStrategy", {**options, **changes})


def zero(stage):
    return DeepSpeed("DeepSpeedStrategy", {"config": {"zero_optimization": {"stage": stage}}})


class OwnAdafactor(torch.optim.Adafactor):
    """Its own name has nothing to do with that of its base class."""


class OwnOptimizer(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = Adafactor(self.model.parameters(), lr=0.1, relative_step=False)
        return self.optimizer


def test_names_of_optimizers_that_demand_something_are_these():
    demands = {name.value: optimizer_requirements(name.value) for name in OptimizerNames}
    assert {name: requirements for name, requirements in demands.items() if requirements} == DEMANDS
    for path in PATHS + PATHS_OF_LIBRARIES:
        assert optimizer_requirements(path) == WHOLE
    assert optimizer_requirements("AdamWScheduleFree") == OWN_STEPS
    others = (
        "Adam AdamW SGD NAdam RAdam RMSprop Adagrad Adadelta ASGD Rprop AdEMAMix Lion AdamW8bit"
    )
    assert not any(optimizer_requirements(name) for name in others.split())


@pytest.mark.parametrize("optim", [*demanding(WHOLE), *PATHS])
@pytest.mark.parametrize(
    "strategy", [fsdp(), zero(1), zero(2), zero(3)], ids=["fsdp1", "zero1", "zero2", "zero3"]
)
def test_optim_that_needs_whole_parameters_is_refused_before_a_run(
    tmp_path, strategy, optim, monkeypatch
):
    monkeypatch.setattr("lightrainer.facade.strategies.deepspeed.require_deepspeed", lambda: None)
    with pytest.raises(ValueError, match=f"optim='{optim}'"):
        strategy.check(arguments(tmp_path, optim=optim), tiny())


@pytest.mark.parametrize(
    ("made", "argument"),
    [
        (
            {"optimizer_cls_and_kwargs": (Adafactor, {"lr": 0.1, "relative_step": False})},
            "optimizer_cls_and_kwargs",
        ),
        ({"optimizer_cls_and_kwargs": (OwnAdafactor, {"lr": 0.1})}, "optimizer_cls_and_kwargs"),
        ({"cls": OwnOptimizer}, "create_optimizer"),
    ],
    ids=["class", "subclass", "override"],
)
@pytest.mark.parametrize("strategy", [fsdp(), zero(2)], ids=["fsdp1", "zero2"])
def test_made_optimizer_that_needs_whole_parameters_is_refused_before_the_first_step(
    tmp_path, strategy, made, argument
):
    facade = make_trainer(tmp_path, **made)
    facade.create_optimizer()
    with pytest.raises(ValueError, match=rf"\({argument}\) needs parameters in their shapes"):
        strategy._check_made_optimizer(facade)


class AdamWScheduleFree(torch.optim.AdamW):
    """Of the name of the class of the library schedulefree."""


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_optimizer_that_steps_elsewhere_is_refused_by_deepspeed_in_every_stage(
    tmp_path, stage, monkeypatch
):
    monkeypatch.setattr("lightrainer.facade.strategies.deepspeed.require_deepspeed", lambda: None)
    for optim in demanding(OWN_STEPS):
        with pytest.raises(ValueError, match=f"optim='{optim}' is not supported with deepspeed"):
            zero(stage).check(arguments(tmp_path, optim=optim), tiny())
    facade = make_trainer(tmp_path, optimizer_cls_and_kwargs=(AdamWScheduleFree, {"lr": 0.1}))
    facade.create_optimizer()
    with pytest.raises(
        ValueError,
        match=r"AdamWScheduleFree \(optimizer_cls_and_kwargs\) is not supported with deepspeed",
    ):
        zero(stage)._check_made_optimizer(facade)


@pytest.mark.parametrize(
    "strategy",
    [
        fsdp(use_orig_params=True),
        fsdp(use_orig_params=True, sharding_strategy="NO_SHARD"),
        zero(0),
    ],
    ids=["one process", "no_shard", "zero0"],
)
def test_strategies_that_keep_shapes_take_every_optimizer(tmp_path, strategy):
    """One process alone shards nothing."""
    strategy.check_optimizer(arguments(tmp_path), "optim='adafactor'", "adafactor")


def test_torch_adafactor_is_refused_where_parameters_are_in_parts(tmp_path):
    strategy = ModelParallel("ModelParallelStrategy", {"tensor_parallel_size": 1})
    with pytest.raises(ValueError, match=r"optim='torch\.optim\.Adafactor'.*'adafactor'"):
        strategy.check(arguments(tmp_path, optim="torch.optim.Adafactor"), tiny())
    strategy.check(arguments(tmp_path, optim="adafactor"), tiny())
