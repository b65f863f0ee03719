"""Rules by patterns of names: what matches, which rule counts, and what cannot be."""

import re

import pytest

from lightrainer.lightning_modules.common.parameter_rules import rule_problems, settings_by_name

NAMES = [
    "embed.weight",
    *(f"layers.{n}.{w}" for n in (0, 1, 10) for w in ("fc.weight", "fc.bias")),
    "head.bias",
]


def chosen(pattern, names=NAMES):
    return [
        name
        for name, settings in settings_by_name({pattern: {"lr": 1.0}}, names).items()
        if "lr" in settings
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("head", ["head.bias"]),
        ("*.bias", ["layers.0.fc.bias", "layers.1.fc.bias", "layers.10.fc.bias", "head.bias"]),
        ("layers.1", ["layers.1.fc.weight", "layers.1.fc.bias"]),
        ("layers.[01].fc.w*", ["layers.0.fc.weight", "layers.1.fc.weight"]),
        ("*", NAMES),
    ],
)
def test_parameter_rules_match_whole_names(pattern, expected):
    assert chosen(pattern) == expected


def test_parameter_rules_skip_wrappers_of_layers():
    names = [
        "layers.0._fsdp_wrapped_module.fc._checkpoint_wrapped_module.weight",
        "_orig_mod.layers.1.fc.weight",
    ]
    assert chosen("layers.?.fc.weight", names) == names


def test_parameter_rules_later_ones_override_by_setting():
    rules = {
        "*": {"lr": 1.0, "weight_decay": 0.5},
        "head": {"lr": 2.0},
        "*.bias": {"weight_decay": 0.0},
    }
    settings = settings_by_name(rules, NAMES)
    assert settings["head.bias"] == {
        "lr": 2.0,
        "weight_decay": 0.0,
        "patterns": ["*", "head", "*.bias"],
    }
    assert settings["embed.weight"] == {"lr": 1.0, "weight_decay": 0.5, "patterns": ["*"]}


@pytest.mark.parametrize(
    ("pattern", "name", "depth"),
    [
        ("layers.*", "layers.0.fc.bias", 10),
        ("layers", "layers.1.fc.bias", 9),
        ("*.fc.*", "layers.10.fc.bias", 0),
        ("layers.1*", "layers.1.fc.weight", 9),
        ("a.2.blocks.*", "a.2.blocks.3.w", 1),
    ],
)
def test_decay_by_layer_counts_from_the_highest_number_that_matches(pattern, name, depth):
    names = [*NAMES, "a.2.blocks.3.w", "a.2.blocks.4.w"]
    assert (
        settings_by_name({pattern: {"layer_decay": 0.5}}, names)[name]["layer_decay"] == 0.5**depth
    )


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"hed": {"lr": 1.0}}, "'hed' matches no parameter.*'head'.*embed.weight"),
        ({"fc.*": {"lr": 1.0}}, r"'fc\.\*' matches no parameter"),
        (
            {"*": {"layer_decay": 0.9}},
            r"'\*': layer_decay needs a layer number .* 'embed.weight' has none",
        ),
    ],
)
def test_rules_that_do_not_fit_the_model_are_named(rules, message):
    with pytest.raises(ValueError, match=f"parameter_rules: {message}"):
        settings_by_name(rules, NAMES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": 1}, "frozen=1 must be True or False"),
        ({"lr_facto": 1}, "'lr_facto' is not known. Did you mean 'lr_factor'"),
        ({"lr": "1e-4"}, "lr='1e-4' must be a number.*YAML"),
        ({"lr": float("nan")}, "lr=nan must be"),
        ({"weight_decay": -1}, "weight_decay=-1 must be"),
        ({"layer_decay": True}, "layer_decay=True must be"),
        ({}, "must be a dict"),
        (0.1, "must be a dict"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    (problem,) = rule_problems({"head": settings})
    assert problem.startswith("parameter_rules: 'head': ")
    assert re.search(message, problem)
