"""Strategies: one class and one module each, one interface, made once a run, and no questions by name."""

import ast
import pathlib

import pytest
import torch
from test_plan import of_four
from tiny import Tiny, arguments, trainer

from lightrainer import TrainerCallback
from lightrainer.facade import strategies
from lightrainer.facade.strategies.ddp import OWN_LOOP
from lightrainer.facade.strategies.plan import translate
from lightrainer.facade.strategies.strategy import Strategy

ASKED = {
    "ddp": {},
    "fsdp": {"fsdp": "full_shard"},
    "fsdp 2": {"fsdp": "full_shard", "fsdp_config": {"version": 2}},
    "tensor parallel": {"parallelism_config": {"tp_size": 4}},
    "deepspeed": {"deepspeed": {"zero_optimization": {"stage": 3}}},
    "xla": {"fsdp": "full_shard", "fsdp_config": {"xla": True}},
}


class Host:
    """A Trainer as far as a strategy has to know it."""

    def __init__(self):
        self.model = self.model_wrapped = Tiny()


def members(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", ASKED)
def test_a_strategy_is_one_module_with_one_interface(tmp_path, name):
    strategy = translate(of_four(tmp_path, **ASKED[name])).strategy
    own = {"of", "engine", "engine_config", "keywords", "open_keys", "require_filled", "stage", "wrapper"}
    own |= {"device", "processes_on_disk", "should_log"}
    assert members(type(strategy)) - members(Strategy) <= own


def asks_which_strategy(path):
    """The lines of a module that import a strategy's class, or use the name of one but in a message."""
    classes = {kind.__name__ for kind in Strategy.__subclasses__()}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    shown = {inner for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.level and classes & {alias.name for alias in node.names})
        or (isinstance(node, ast.Attribute) and ast.unparse(node).endswith("strategy.name") and node not in shown)
    ]


def test_only_the_strategies_ask_which_one_it_is():
    facade = pathlib.Path(strategies.__file__).parents[1]
    found = {str(path): lines for path in facade.rglob("*.py") if (lines := asks_which_strategy(path))}
    assert {path for path in found if facade.joinpath("strategies") not in pathlib.Path(path).parents} == set()
    assert any(path.endswith("__init__.py") for path in found)  # `choose`, so that the search is known to find


@pytest.mark.parametrize("name", ASKED)
def test_before_there_is_a_run_the_model_is_called_as_it_is(tmp_path, name):
    host = Host()
    strategy = translate(of_four(tmp_path, **ASKED[name])).strategy.bind(host)
    assert not strategy.runs
    assert strategy.called is host.model
    assert strategy.spread is strategy.ddp is strategy.device_mesh is strategy.half_of_inputs is None
    assert {strategy.all_write, strategy.clips_in_step, strategy.splits_sequences} == {False}
    assert strategy.whole_weights(host.model, keep=True) is None
    assert strategy.is_trained(host.model)
    assert not strategy.is_trained(Tiny())


def test_gradients_of_other_models_are_clipped_and_measured():
    model = torch.nn.Linear(1, 1, bias=False)
    model(torch.tensor([3.0])).backward()
    assert OWN_LOOP.norm(model) == 3.0
    assert OWN_LOOP.clip(list(model.parameters()), 1.0) == 3.0
    assert model.weight.grad.item() == pytest.approx(1.0)


class Looking(TrainerCallback):
    """Notes down plan and strategy at each step, and changes arguments that a strategy is made of."""

    def __init__(self):
        self.seen, self.trainer = [], None

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append((self.trainer.plan, self.trainer.accelerator.strategy, self.trainer.accelerator.strategy.runs))
        args.bf16 = not args.bf16


def test_plan_and_strategy_are_made_once_a_run(tmp_path):
    looking = Looking()
    made = looking.trainer = trainer(tmp_path, args=arguments(tmp_path, max_steps=3), callbacks=[looking])
    for _ in range(2):
        made.train()
        made.args.bf16 = False
    plans, used, running = zip(*looking.seen, strict=True)
    assert len({id(plan) for plan in plans}) == len({id(strategy) for strategy in used}) == 2
    assert {plan.precision for plan in plans} == {"32-true"}
    assert all(running)
    assert made.accelerator.strategy is used[-1]
    assert not used[-1].runs
    assert made.plan is not plans[-1]
