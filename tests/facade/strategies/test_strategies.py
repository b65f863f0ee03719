"""Strategies at work: one interface, one module each, made once a run and asked until the next."""

import pytest
import torch
from test_plan import of_four
from tiny import Tiny, arguments, trainer

from lightrainer import TrainerCallback
from lightrainer.facade.strategies.base import OWN_LOOP, StrategyPlan
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
    """What a strategy has to know of a Trainer."""

    def __init__(self):
        self.model = self.model_wrapped = Tiny()


def members(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", ASKED)
def test_a_strategy_is_one_module_with_one_interface(tmp_path, name):
    plan = translate(of_four(tmp_path, **ASKED[name])).strategy
    strategy = plan.for_trainer(Host())
    assert isinstance(strategy, Strategy)
    assert type(strategy) is Strategy or type(strategy).__module__ == type(plan).__module__
    assert members(type(strategy)) - members(Strategy) <= {"engine"}  # DeepSpeed's, which nobody else asks for


@pytest.mark.parametrize("name", ASKED)
def test_before_there_is_a_run_the_model_is_called_as_it_is(tmp_path, name):
    host = Host()
    strategy = translate(of_four(tmp_path, **ASKED[name])).strategy.for_trainer(host)
    assert not strategy.runs
    assert strategy.called is host.model
    assert strategy.spread is strategy.ddp is strategy.device_mesh is strategy.half_of_inputs() is None
    assert {strategy.all_write, strategy.clips_in_step, strategy.splits_sequences} == {False}
    assert strategy.whole_weights(host.model, keep=True) is None
    assert strategy.is_trained(host.model)
    assert not strategy.is_trained(Tiny())


def test_it_does_not_keep_its_trainer_alive():
    host = Host()
    strategy = StrategyPlan(name="", options={}).for_trainer(host)
    del host
    assert strategy.called is None
    assert strategy.to_call(model := Tiny()) is model


def test_gradients_of_other_models_are_clipped_and_measured():
    model = torch.nn.Linear(1, 1, bias=False)
    model(torch.tensor([3.0])).backward()
    assert OWN_LOOP.norm(model) == 3.0
    assert OWN_LOOP.clip(list(model.parameters()), 1.0) == 3.0
    assert model.weight.grad.item() == pytest.approx(1.0)


class Looking(TrainerCallback):
    """Notes down plan and strategy at each step, and changes arguments that a strategy is made of."""

    def __init__(self):
        self.seen = []
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append((self.trainer.plan, self.trainer.accelerator.strategy, self.trainer.accelerator.strategy.runs))
        args.bf16 = not args.bf16


def test_plan_and_strategy_are_made_once_a_run(tmp_path):
    looking = Looking()
    made = looking.trainer = trainer(tmp_path, args=arguments(tmp_path, max_steps=3), callbacks=[looking])
    for _ in range(2):
        made.train()
        made.args.bf16 = False
    plans, strategies, running = zip(*looking.seen, strict=True)
    assert len({id(plan) for plan in plans}) == len({id(strategy) for strategy in strategies}) == 2
    assert {plan.precision for plan in plans} == {"32-true"}
    assert all(running)
    assert made.accelerator.strategy is strategies[-1]
    assert not strategies[-1].runs
    assert made.plan is not plans[-1]
