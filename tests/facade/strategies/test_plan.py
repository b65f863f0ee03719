"""Arguments are translated for Lightning once, and the plan is frozen and shown in full."""

import dataclasses
import datetime

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from helpers.trainer.four_processes import of_four
from helpers.trainer.tiny_trainings import At, arguments, make_trainer, with_trainer_in_callbacks
from lightrainer import RunPlan, TrainingArguments
from lightrainer.facade.strategies.plan import translate
from lightrainer.facade.strategies.strategy import Strategy


def plan(folder, **changes) -> RunPlan:
    return translate(arguments(folder, **changes))


def test_plan_defaults_on_one_cpu(tmp_path):
    plan = translate(TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none"))
    assert (plan.strategy.name, plan.strategy.options) == (
        "SingleDeviceStrategy",
        {"device": "cpu"},
    )
    assert (plan.accelerator, plan.devices, plan.num_nodes, plan.precision) == (
        "cpu",
        1,
        1,
        "32-true",
    )
    assert plan.default_root_dir == str(tmp_path)
    assert (
        dict(vars(translate(of_four(tmp_path)))).items() >= {"devices": 2, "num_nodes": 2}.items()
    )


SHOWN = [
    ("bf16", True, "bf16-mixed"),
    ("fp16", True, "16-mixed"),
    ("max_steps", 7, "1, 7"),
    ("gradient_accumulation_steps", 3, "3"),
    ("max_grad_norm", 0.0, "none"),
    ("optim_args", "momentum=0.5", "args=momentum=0.5"),
    ("adam_epsilon", 1e-3, "epsilon=0.001"),
    ("lr_scheduler_kwargs", {"num_cycles": 2}, "num_cycles=2"),
    ("warmup_steps", 0.1, "warm-up 0.1"),
    ("report_to", ["tensorboard"], "tensorboard"),
]


@pytest.mark.parametrize(("name", "value", "text"), SHOWN)
def test_plan_shows_what_a_training_reads_later(tmp_path, name, value, text):
    """In one row of the table, which has it in no other case."""
    changed, plain = (
        dict(enumerate(shown.rows())) for shown in (plan(tmp_path, **{name: value}), plan(tmp_path))
    )
    different = [row for number, row in changed.items() if row != plain[number]]
    assert len(different) == 1
    assert text in different[0][2]


def test_plan_passes_ddp_options(tmp_path):
    options = {
        "ddp_bucket_cap_mb": 7,
        "ddp_broadcast_buffers": False,
        "ddp_backend": "gloo",
        "ddp_timeout": 60,
    }
    options |= {"ddp_static_graph": True}
    strategy = translate(of_four(tmp_path, **options)).strategy.build()
    assert isinstance(strategy, DDPStrategy)
    assert strategy._ddp_kwargs["bucket_cap_mb"] == 7
    assert strategy._ddp_kwargs["broadcast_buffers"] is False
    assert strategy._ddp_kwargs["static_graph"] is True
    assert strategy.process_group_backend == "gloo"
    assert strategy._timeout == datetime.timedelta(seconds=60)


def test_plan_of_one_process_uses_single_device(tmp_path):
    assert plan(tmp_path).strategy.build() == "auto"


OTHER = {"accelerator": "other", "devices": 99, "num_nodes": 98}
OTHER |= {"strategy": Strategy("Other", {"bucket_cap_mb": 97}), "precision": "other-mixed"}
OTHER |= {"default_root_dir": "other/folder", "rows_of_training": lambda: [("other", "row", "92")]}


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(RunPlan)])
def test_plan_shows_every_part(tmp_path, name):
    """Whatever differs between two plans differs in what is printed."""
    original = plan(tmp_path)
    assert repr(dataclasses.replace(original, **{name: OTHER[name]})) != repr(original)


def test_plan_follows_the_arguments_as_they_are_now(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.args.max_steps = 3
    assert ", 3" in {row[0]: row[2] for row in trainer.plan.rows()}["num_train_epochs, max_steps"]
    assert not hasattr(trainer, "_lightning_trainer")


def test_plan_and_strategy_are_made_once_a_run(tmp_path):
    """Whatever becomes of the arguments meanwhile."""
    states = []

    def look(of, state, control):
        states.append((of.plan, of.accelerator.strategy, of.accelerator.strategy.is_running))
        of.args.bf16 = not of.args.bf16

    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path, max_steps=3, callbacks=[At("on_step_end", look)])
    )
    for _ in range(2):
        trainer.train()
        trainer.args.bf16 = False
    plans, used, running = zip(*states, strict=True)
    assert len({id(plan) for plan in plans}) == len({id(strategy) for strategy in used}) == 2
    assert {plan.precision for plan in plans} == {"32-true"}
    assert all(running)
    assert not used[-1].is_running


def test_models_that_checkpoint_their_activations_have_no_unused_parameters(tmp_path):
    """DDP must not look for unused parameters where activations are computed twice."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_positions=8, n_embd=8, n_layer=1, n_head=1, vocab_size=11)
    model = transformers.GPT2LMHeadModel(config)
    unused = {}
    for checkpointing in (False, True):
        args = of_four(tmp_path, gradient_checkpointing=checkpointing)
        trainer = make_trainer(tmp_path, model=model, args=args, eval_dataset=None)
        unused[checkpointing] = trainer.plan.strategy.options["find_unused_parameters"]
    assert unused == {False: True, True: False}


def test_plan_gpu_is_the_one_of_the_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "device", property(lambda self: torch.device("cuda", 2)))
    gpu_plan = plan(tmp_path)
    assert (gpu_plan.accelerator, gpu_plan.devices) == ("cuda", [2])
    assert gpu_plan.strategy.options == {"device": "cuda:2"}
