"""`parameter_rules` and `optim` by a path in trainings: exact, resumed, shown in the plan, never
without effect.
"""

import json

import pytest
import torch
from torch.nn import functional

from helpers.trainer.tiny_trainings import (
    arguments,
    files,
    losses,
    make_trainer,
    points,
    same_bits,
    tiny,
    weights,
)
from lightrainer import HfArgumentParser, Trainer, TrainingArguments
from lightrainer.facade.arguments.enums import OptimizerNames
from lightrainer.facade.strategies.fsdp import FSDP

RULES = {
    "first": {"lr_factor": 0.1},
    "*.bias": {"lr": 0.5, "weight_decay": 0.25},
    "norm": {"frozen": True},
}
RULED = {"parameter_rules": RULES, "weight_decay": 0.1, "optim": "adamw_torch"}
MUON = {"optim": "torch.optim.Muon", "optim_args": "momentum=0.9,ns_steps=3", "weight_decay": 0.1}
muon = pytest.param(
    MUON, marks=pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 has it")
)


def by_hand(groups, model):
    """A loop over the same samples in their order, with a linear schedule."""
    optimizer = torch.optim.AdamW(groups(model), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4)
    data = points()
    for start in range(0, 16, 4):
        batch = data[start : start + 4]
        x, labels = (torch.stack([sample[key] for sample in batch]) for key in ("x", "labels"))
        functional.cross_entropy(model.logits(x), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def groups_by_hand(model):
    model.norm.requires_grad_(False)
    return [
        {"params": [model.second.weight], "weight_decay": 0.1},
        {"params": [model.first.weight], "weight_decay": 0.1, "lr": 0.01 * 0.1},
        {"params": [model.first.bias], "weight_decay": 0.25, "lr": 0.5 * 0.1},
        {"params": [model.second.bias], "weight_decay": 0.25, "lr": 0.5},
    ]


class InOrder(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def test_steps_are_those_of_groups_by_hand(tmp_path):
    torch.manual_seed(3)
    trainer = make_trainer(tmp_path, cls=InOrder, model=type(tiny())(0.0), **RULED)
    expected = type(tiny())(0.0)
    expected.load_state_dict(trainer.model.state_dict())
    trainer.train()
    by_hand(groups_by_hand, expected)
    assert same_bits(weights(trainer.model), weights(expected))
    assert not same_bits(weights(trainer.model), weights(make_trainer(tmp_path).model))


def test_rules_freeze_and_unfreeze_for_good(tmp_path):
    """From the construction on, so that FSDP shards accordingly; a model of `model_init` too."""
    model = tiny()
    before = weights(model)
    trainer = make_trainer(tmp_path, model=model, parameter_rules={"norm": {"frozen": True}})
    assert (
        trainer.get_num_trainable_parameters()
        == sum(parameter.numel() for parameter in model.parameters()) - 12
    )
    trainer.train()
    changed = {
        name for name, tensor in weights(model).items() if not torch.equal(tensor, before[name])
    }
    assert changed == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert not model.norm.weight.requires_grad
    make_trainer(tmp_path, model=model, parameter_rules={"norm": {"frozen": False}}).train()
    assert not torch.equal(weights(model)["norm.weight"], before["norm.weight"])
    trainer = make_trainer(
        tmp_path, model_init=lambda: tiny(), parameter_rules={"norm": {"frozen": True}}
    )
    trainer.train()
    assert torch.equal(weights(trainer.model)["norm.weight"], before["norm.weight"])


@pytest.mark.parametrize(
    "changes", [RULED, muon, {"optim": "torch.optim.NAdam"}], ids=["rules", "muon", "path"]
)
def test_parameter_rules_resumption_is_exact(tmp_path, changes):
    saving = {"save_strategy": "steps", "save_steps": 2, **changes}
    whole = make_trainer(tmp_path, **saving)
    whole.train()
    again = make_trainer(tmp_path, model=tiny(9), **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_bits(weights(whole.model), weights(again.model))
    assert losses(whole) == losses(again)


def test_parameter_rules_that_differ_from_the_checkpoint_are_refused(tmp_path):
    """Groups of the same sizes, in which other parameters would get the states."""
    rules = [{"first.bias": {"lr": 0.5}}, {"norm.weight": {"lr": 0.5}}]
    make_trainer(tmp_path, save_strategy="steps", save_steps=2, parameter_rules=rules[0]).train()
    with pytest.raises(
        ValueError,
        match=r"parameter_rules first\.bias in group 2, but the optimizer has norm\.weight",
    ):
        make_trainer(tmp_path, parameter_rules=rules[1]).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


def test_parameter_rules_follow_the_schedule(tmp_path):
    trainer = make_trainer(tmp_path, **RULED, max_steps=2)
    trainer.train()
    assert [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry] == [
        0.01,
        0.005,
    ]
    assert trainer.get_learning_rates() == [0.0] * 5
    assert [group["initial_lr"] for group in trainer.optimizer.param_groups] == [
        0.01,
        0.01,
        0.001,
        0.05,
        0.5,
    ]


def test_overridden_decay_names_and_a_class_given_by_hand_are_respected(tmp_path):
    class Own(Trainer):
        def get_decay_parameter_names(self, model):
            return ["first.bias"]

    trainer = make_trainer(
        tmp_path,
        cls=Own,
        weight_decay=0.1,
        parameter_rules={"first": {"lr_factor": 2}},
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.01}),
    )
    groups = [
        (group["weight_decay"], group["lr"], len(group["params"]))
        for group in trainer.create_optimizer().param_groups
    ]
    assert groups == [(0.1, 0.01, 0), (0.0, 0.01, 4), (0.0, 0.02, 1), (0.1, 0.02, 1)]


class Overriding(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer


def given(model):
    return {"model": model, "optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None)}


@pytest.mark.parametrize(
    "make", [lambda: {"cls": Overriding}, lambda: given(tiny())], ids=["override", "passed"]
)
def test_rules_without_effect_are_an_error_before_anything_is_written(tmp_path, make):
    trainer = make_trainer(tmp_path, **make(), parameter_rules={"first": {"lr": 0.1}})
    with pytest.raises(ValueError, match=r"parameter_rules=\{'first'.* would have no effect: SGD"):
        trainer.train()
    assert files(tmp_path) == []
    make_trainer(tmp_path, **make(), parameter_rules={"first": {"frozen": True}}).train()


@pytest.mark.parametrize("changes", [muon, {"parameter_rules": RULES}], ids=["muon", "rules"])
def test_flat_parameters_are_refused(tmp_path, changes):
    options = {
        "auto_wrap_policy": None,
        "use_orig_params": False,
        "sharding_strategy": "FULL_SHARD",
    }
    with pytest.raises(
        ValueError, match=r"version 1 of fsdp flattens (them|parameters).*'version': 2"
    ):
        FSDP("FSDPStrategy", options).check(arguments(tmp_path, **changes), tiny())


def test_parameter_rules_that_do_not_fit_the_model_raise(tmp_path):
    with pytest.raises(ValueError, match=r"'firts' matches no parameter.*Did you mean 'first'"):
        make_trainer(tmp_path / "out", parameter_rules={"firts": {"lr": 0.1}})
    assert not (tmp_path / "out").exists()


def test_parameter_rules_are_read_in_every_form(tmp_path):
    """The command line, JSON, `to_dict`, `set_optimizer`; a path equals no name."""
    path, rules = "torch.optim.NAdam", {"*.bias": {"weight_decay": 0, "frozen": False}}
    words = ["--output_dir", "out", "--optim", path, "--parameter_rules", json.dumps(rules)]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    for parsed in (
        args,
        TrainingArguments(**json.loads(json.dumps({"optim": path, "parameter_rules": rules}))),
    ):
        assert (parsed.optim, parsed.parameter_rules) == (path, rules)
        assert parsed.optim != OptimizerNames.ADAMW_TORCH
        assert (
            parsed.to_dict()["optim"],
            json.loads(parsed.to_json_string())["parameter_rules"],
        ) == (
            path,
            rules,
        )
        assert f"optim={path}" in str(parsed)
    assert TrainingArguments(**args.to_dict()).optim == path
    assert args.set_optimizer(path, args="momentum_decay=0.1").optim == path
