"""`LossModule(parameter_rules=...)`: groups of the optimizer by names of parameters, in every
form of optimizer.
"""

import pytest
import torch
from torch.utils.data import DataLoader

from helpers.lightning.tiny_modules import Net, make_trainer, points, seeded
from lightrainer.lightning_modules import LossModule

RULES = {
    "layers.0.*": {"frozen": True},
    "layers.1.weight": {"weight_decay": 0.5},
    "layers.3.*": {"lr_factor": 10},
}
OPTIMIZERS = {
    "config": {"learning_rate": 0.01, "weight_decay": 0.1},
    "class": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01, "weight_decay": 0.1}},
}


def fitted(**options):
    module, trainer = (
        LossModule(seeded(Net), schedule={"name": "linear"}, **options),
        make_trainer(),
    )
    trainer.fit(module, DataLoader(points(), batch_size=4))
    return module, trainer


@pytest.mark.parametrize("form", OPTIMIZERS)
def test_parameter_rules_set_groups(form):
    """Learning rate, weight decay and freezing; the decay of the optimizer applies where no rule
    has one.
    """
    module, trainer = fitted(optimizer=OPTIMIZERS[form], parameter_rules=RULES)
    groups = trainer.optimizers[0].param_groups
    settings = [
        (group.get("rules"), group["initial_lr"], group["weight_decay"], len(group["params"]))
        for group in groups
    ]
    assert settings == [
        (None, 0.01, 0.1, 0),
        (None, 0.01, 0.0, 1),
        ("layers.1.weight", 0.01, 0.5, 1),
        ("layers.3.*", pytest.approx(0.1), 0.1, 1),
        ("layers.3.*", pytest.approx(0.1), 0.0, 1),
    ]
    assert all(group["lr"] == 0 for group in groups), "the schedule ends"
    before = seeded(Net).state_dict()
    moved = [
        name
        for name, value in module.model.state_dict().items()
        if not torch.equal(value, before[name])
    ]
    assert moved == [name for name in before if not name.startswith("layers.0.")]


def test_parameter_rules_are_in_checkpoints(tmp_path):
    _, trainer = fitted(parameter_rules=RULES)
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    again = LossModule.load_from_checkpoint(
        tmp_path / "module.ckpt", model=Net(), weights_only=True
    )
    assert again.parameter_rules == RULES


def plainly(groups):
    return torch.optim.SGD([parameter for group in groups for parameter in group["params"]], lr=0.1)


@pytest.mark.parametrize(
    ("rules", "optimizer", "message"),
    [
        ({"layers.*": {"lrs": 1.0}}, None, "Did you mean 'lr'"),
        ({"head.*": {"lr": 1.0}}, None, "'head.*' matches no parameter"),
        (
            {"layers.*": {"lr_factor": 2.0}},
            lambda groups: torch.optim.SGD(groups, lr=0.1),
            "Add 'lr' to the rule",
        ),
        ({"layers.*": {"lr": 2.0}}, plainly, "ignores the groups"),
    ],
)
def test_parameter_rules_without_effect_are_refused(rules, optimizer, message):
    with pytest.raises(ValueError, match="parameter_rules") as raised:
        fitted(optimizer=optimizer, parameter_rules=rules)
    assert message in str(raised.value)


def test_parameter_rules_of_a_function_that_makes_an_optimizer():
    rules = {"layers.3.*": {"lr": 0.5}, "layers.0.*": {"frozen": True}}
    _, trainer = fitted(
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1), parameter_rules=rules
    )
    assert [group["initial_lr"] for group in trainer.optimizers[0].param_groups] == [
        0.1,
        0.1,
        0.5,
        0.5,
    ]
