"""Torch's optimizers by name: class, arguments, states and weights are the reference's, bit for bit."""

import pytest
from reference_side import reference_arguments, reference_optimizer, same, train

from lightrainer.lightning_modules.optim import OptimizerConfig

OPTIONS = [
    ("adamw_torch", None),
    ("adamw_torch_fused", None),
    ("adafactor", None),
    ("sgd", None),
    ("sgd", "momentum=0.9, nesterov=True,dampening=0"),
    ("sgd", "momentum=0.9,dampening=0.1,nesterov=no"),
    ("adagrad", None),
    ("adagrad", "lr_decay=0.01,eps=1e-6"),
    ("rmsprop", None),
    ("rmsprop", "momentum=0.5,alpha=0.9,eps=1e-7,centered=yes"),
]


@pytest.mark.parametrize(("name", "args"), OPTIONS)
def test_training_equals_reference(name, args):
    """Weights, optimizer state and the arguments in it have the reference's bits after five steps."""
    config = OptimizerConfig(name=name, learning_rate=0.01, weight_decay=0.1, args=args)
    model, optimizer = train(lambda config, model: config.build(model), config)
    expected_model, expected_optimizer = train(reference_optimizer, config)
    assert same(model.state_dict(), expected_model.state_dict())
    assert same(optimizer.state_dict(), expected_optimizer.state_dict())


def test_training_comparison_can_fail():
    """Negative control: another weight decay is seen."""
    model, _ = train(reference_optimizer, OptimizerConfig(learning_rate=0.01, weight_decay=0.1))
    other, _ = train(reference_optimizer, OptimizerConfig(learning_rate=0.01, weight_decay=0.2))
    assert not same(model.state_dict(), other.state_dict())


def test_defaults_are_the_documented_ones():
    """The default optimizer and its numbers are those of `TrainingArguments`."""
    from transformers import TrainingArguments

    fields = {name: field.default for name, field in TrainingArguments.__dataclass_fields__.items()}
    config = reference_arguments(OptimizerConfig())
    names = ("optim_args", "optim_target_modules", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2")
    for name in (*names, "adam_epsilon"):
        assert getattr(config, name) == fields[name]
    assert config.optim.value == TrainingArguments.default_optim
