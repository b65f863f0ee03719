"""`optim_target_modules` selects the reference's linear layers, with helpful errors."""

import logging

import pytest
from torch import nn

from helpers.optim import optimizer_stand_ins
from helpers.optim.reference_optimizers import reference_class_and_kwargs
from lightrainer.lightning_modules.common.enums import OptimizerNames
from lightrainer.lightning_modules.optim import OptimizerConfig
from lightrainer.lightning_modules.optim.low_rank import target_layers

NAME = OptimizerNames.GALORE_ADAMW
LAYERS = ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp", "head"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        block = {"attn": nn.Linear(2, 2), "norm": nn.LayerNorm(2), "mlp": nn.Linear(2, 2)}
        self.blocks = nn.ModuleList(nn.ModuleDict(block) for _ in range(1))
        self.blocks.append(
            nn.ModuleDict(
                {
                    "attn": nn.Linear(2, 2),
                    "norm": nn.LayerNorm(2),
                    "mlp": nn.Linear(2, 2, bias=False),
                }
            )
        )
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3)


MEANT = [
    ("all-linear", LAYERS),
    ("all_linear", LAYERS),
    ("head", ["head"]),
    (r"blocks\.\d\.attn", ["blocks.0.attn", "blocks.1.attn"]),
    (r".*\.1\..*", ["blocks.1.attn", "blocks.1.mlp"]),
    (["attn", "mlp"], LAYERS[:4]),
    (["head", r"blocks\.0\.m.*"], ["blocks.0.mlp", "head"]),
    (["blocks.1.attn"], ["blocks.1.attn"]),
    (["blocks"], LAYERS[:4]),
]


@pytest.mark.parametrize(("targets", "expected"), MEANT, ids=str)
def test_layers_are_those_of_the_reference(monkeypatch, targets, expected):
    optimizer_stand_ins.install(monkeypatch, "galore_torch")
    model = Model()
    assert target_layers(NAME, model, targets) == expected
    config = OptimizerConfig(name=NAME, target_modules=targets)
    others, projected = reference_class_and_kwargs(config, model)[1]["params"]
    assert list(map(id, projected["params"])) == [
        id(model.get_submodule(path).weight) for path in expected
    ]
    assert len(others["params"]) + len(projected["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    "targets", ["attn", "all-linaer", ["norm"], ["query", "value"], [], ""], ids=str
)
def test_targets_that_match_no_layer_raise(monkeypatch, targets):
    optimizer_stand_ins.install(monkeypatch, "galore_torch")
    config = OptimizerConfig(name=NAME, target_modules=targets)
    with pytest.raises(ValueError, match="No target modules"):
        reference_class_and_kwargs(config, Model())
    with pytest.raises(ValueError, match="optim_target_modules") as caught:
        config.build(Model())
    assert repr(targets) in str(caught.value)
    assert "'blocks.0.attn', 'blocks.0.mlp'" in str(caught.value)


def test_entries_without_a_layer_are_named(caplog):
    with caplog.at_level(logging.WARNING):
        assert target_layers(NAME, Model(), ["attn", "query", "norm"]) == [
            "blocks.0.attn",
            "blocks.1.attn",
        ]
    (record,) = caplog.records
    assert "['query', 'norm']" in record.getMessage()
