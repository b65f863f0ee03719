"""In a plain Lightning Trainer the events come as from the facade, in the hooks of the table, as
promised.
"""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision

import lightrainer
from helpers.callbacks.bridged_trainings import (
    At,
    Automatic,
    Network,
    Recorder,
    TwoOptimizers,
    facade,
    fit,
    loader,
    make_trainer,
    raising,
)
from lightrainer import GradientNormCallback, LossModule, ThroughputCallback
from lightrainer.callbacks import EVENTS, LightningBridge
from lightrainer.callbacks.bridge.logs import (
    as_evaluation,
    as_metric_for_best_model,
    as_training,
)

PAGE = Path(__file__).parents[3] / "docs" / "user" / "callbacks.md"
SAME = {
    "one micro-batch a step": ({}, {"limit_val_batches": 0}),
    "accumulation": (
        {"gradient_accumulation_steps": 2},
        {"accumulate_grad_batches": 2, "limit_val_batches": 0},
    ),
    "accumulation with a remainder": (
        {"gradient_accumulation_steps": 4, "logging_steps": 3},
        {"accumulate_grad_batches": 4, "limit_val_batches": 0, "log_every_n_steps": 3},
    ),
    "evaluation by steps": (
        {"eval_strategy": "steps", "eval_steps": 3},
        {"val_check_interval": 3},
    ),
    "steps, not epochs": (
        {"max_steps": 8},
        {"max_steps": 8, "max_epochs": -1, "limit_val_batches": 0},
    ),
    "nothing logged": (
        {"logging_strategy": "no"},
        {"log_every_n_steps": 0, "limit_val_batches": 0},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_bridge_sequence_equals_the_facade(tmp_path, capsys, name):
    """Names, steps, epochs and switches; who asked for a scheduled evaluation is Lightning, so
    no switch says so.
    """
    arguments, options = SAME[name]
    expected, actual = Recorder(), Recorder()
    facade(tmp_path, expected, Network(), **arguments)
    fit(actual, module=LossModule(Network()), **options)
    assert actual.lines == [line.replace("V", "-") for line in expected.lines]
    assert len(actual.lines) > 20


def test_bridge_sequence_equals_the_facade_when_saving(tmp_path, capsys):
    """With strategies that are given to the bridge, on top of what Lightning does by itself."""
    expected, actual = Recorder(), Recorder()
    both = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    facade(tmp_path, expected, Network(), **both)
    settings = {**both, "output_dir": str(tmp_path / "plain")}
    fit(
        actual,
        module=LossModule(Network()),
        bridge=settings,
        check_val_every_n_epoch=None,
        val_check_interval=100,
    )
    assert actual.lines == expected.lines
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == sorted(
        f"checkpoint-{step}.ckpt" for step in (2, 4, 6, 8, 10, 12)
    )


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """All the hooks in which each event was heard, in trainings of every kind."""
    folder = tmp_path_factory.mktemp("heard")
    event_hooks = {}

    def note(recorder):
        for event, hooks in recorder.hooks.items():
            event_hooks.setdefault(event, []).append(hooks)

    for options in (
        {"accumulate_grad_batches": 2},
        {"module": TwoOptimizers(2), "limit_val_batches": 0},
    ):
        recorder = Recorder()
        _, trainer, module = fit(recorder, **options)
        if options.get("module") is None:
            trainer.validate(module, loader(6), verbose=False)
            trainer.test(module, loader(6), verbose=False)
            trainer.predict(module, loader(6))
        note(recorder)
    for when in ({"every_n_train_steps": 2}, {"every_n_epochs": 1}):
        recorder = Recorder()
        saving = ModelCheckpoint(dirpath=folder / str(len(event_hooks)), save_top_k=-1, **when)
        fit(
            recorder,
            raising("on_epoch_end", "should_save"),
            callbacks=[saving],
            enable_checkpointing=True,
        )
        note(recorder)
    recorder = Recorder()
    fit(
        recorder,
        module=Infinite(),
        plugins=[MixedPrecision("16-mixed", "cpu")],
        limit_val_batches=0,
        max_epochs=1,
    )
    assert recorder.names().count("on_optimizer_step") == recorder.names().count("on_step_end") == 6
    note(recorder)
    return event_hooks


class Infinite(Automatic):
    """Its gradients are infinite, so a scaler leaves out the step."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * float("inf")


@pytest.mark.filterwarnings(
    "ignore:Detected call of `lr_scheduler.step", "ignore:.*lr_scheduler.step"
)
@pytest.mark.parametrize("event", [event for event in EVENTS if event != "on_push_begin"])
def test_bridge_events_fire_in_the_hooks_of_the_table(heard, event):
    """The table of the page is what happens."""
    names = {
        "configure_gradient_clipping": "_clip_gradients",
        "Optimizer.register_step_post_hook": "_after_optimizer_step",
    }
    carriers = {names.get(hook, hook) for hook in hooks_of_the_page()[event]}
    assert heard[event], "the event was never heard"
    assert all(callers & carriers for callers in heard[event])


def hooks_of_the_page():
    """Return the hooks of a plain `lightning.Trainer` by event, as the page lists them."""
    hooks = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        event = cells[1].strip("`") if len(cells) == 6 else ""
        if event in EVENTS:
            hooks[event] = re.findall(r"`([\w.]+)`", cells[3])
    assert set(hooks) == set(EVENTS)
    return hooks


@pytest.mark.parametrize("name", ["val_loss", "val/loss", "validation_loss"])
def test_bridge_gives_metrics_their_documented_names(name):
    assert as_evaluation({name: 1.0}) == {"eval_loss": 1.0}
    assert as_metric_for_best_model(name) == "eval_loss"
    assert as_training({"train_acc": 2.0, "train/loss": 1.0}) == {"acc": 2.0, "loss": 1.0}


def test_bridge_passes_event_arguments():
    """Model, optimizer, schedule, loaders and processing class; `args` under documented names."""
    recorder, tokenizer = Recorder(), object()
    training = loader()
    settings = {"processing_class": tokenizer}
    _, trainer, module = fit(recorder, train=training, bridge=settings, accumulate_grad_batches=2)
    during = [call for call in recorder.given if call["event"] != "on_init_end"]
    for call in during:
        assert call["model"] is module
        assert call["optimizer"] is trainer.optimizers[0]
        assert call["lr_scheduler"] is trainer.lr_scheduler_configs[0].scheduler
        assert call["train_dataloader"] is training
        assert call["processing_class"] is tokenizer
        assert call["args"].gradient_accumulation_steps == 2
    evaluated = [call for call in recorder.given if call["event"] == "on_evaluate"]
    assert [call["state"].global_step for call in evaluated] == [6, 6]  # the state is one object
    assert all(len(call["eval_dataloader"]) == 2 for call in evaluated)
    assert all(
        {"eval_loss", "eval_accuracy", "epoch"} <= set(call["metrics"]) for call in evaluated
    )
    logged = [call["logs"] for call in recorder.given if call["event"] == "on_log"]
    assert {"loss", "grad_norm", "learning_rate", "size", "epoch"} == set(logged[0])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_weights_gradients_and_rates_at_the_optimizer_step(accumulation):
    """Before it: old weights and clipped gradients. After it: new weights, gradients, and the
    rate of this step.
    """
    readings = {}

    def look(name):
        def action(args, state, control, model, optimizer, **kwargs):
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
            weight = model.network.first.weight.detach().clone()
            readings.setdefault(name, []).append((weight, norm, optimizer.param_groups[0]["lr"]))

        return At(name, action)

    looks = look("on_pre_optimizer_step"), look("on_optimizer_step")
    fit(*looks, gradient_clip_val=0.01, accumulate_grad_batches=accumulation)
    before, after = readings["on_pre_optimizer_step"], readings["on_optimizer_step"]
    assert len(before) == len(after) == (12 if accumulation == 1 else 6)
    assert all(norm == pytest.approx(0.01, rel=1e-3) for _, norm, _ in before + after)
    assert not any(
        torch.equal(old, new) for (old, *_), (new, *_) in zip(before, after, strict=True)
    )
    assert all(
        torch.equal(old, new) for (old, *_), (new, *_) in zip(before[1:], after[:-1], strict=True)
    )
    assert [rate for *_, rate in after] == pytest.approx(
        [0.1 / (1 + step) for step in range(len(after))]
    )


@pytest.mark.parametrize(("accumulation", "entries"), [(2, 6), (4, 5)])
def test_bridge_logs_equal_those_of_the_training(tmp_path, capsys, accumulation, entries):
    """Loss, norm, rate and evaluation equal the facade's, where both do the same, with
    micro-batches of 4 and 2.
    """
    torch.manual_seed(3)
    network = Network()
    copied = Network()
    copied.load_state_dict(network.state_dict())
    order = {"train_sampling_strategy": "sequential"}
    optimizer = {"learning_rate": 0.05, "lr_scheduler_type": "constant"}
    optimizer["gradient_accumulation_steps"] = accumulation
    through = facade(
        tmp_path, Recorder(), network, logging_steps=2, eval_strategy="epoch", **order, **optimizer
    )
    config = lightrainer.OptimizerConfig(learning_rate=0.05)
    options = {
        "accumulate_grad_batches": accumulation,
        "gradient_clip_val": 1.0,
        "log_every_n_steps": 2,
    }
    bridge, _, _ = fit(module=LossModule(copied, optimizer=config), **options)
    names = ("loss", "grad_norm", "learning_rate", "eval_loss", "train_loss", "epoch", "step")
    expected, actual = (
        [{name: entry[name] for name in names if name in entry} for entry in state.log_history]
        for state in (through.state, bridge.state)
    )
    assert len(expected) == len(actual) == entries
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    for field in (
        "global_step",
        "max_steps",
        "num_train_epochs",
        "logging_steps",
        "train_batch_size",
        "epoch",
    ):
        assert getattr(bridge.state, field) == getattr(through.state, field), field


def test_bridge_with_several_optimizers_under_manual_optimization():
    """Lightning counts the steps of both; each has its own pair of events, with the optimizer
    that steps.
    """
    recorder = Recorder()
    bridge, trainer, _ = fit(recorder, module=TwoOptimizers(), limit_val_batches=0, max_epochs=1)
    assert trainer.global_step == bridge.state.global_step == bridge.state.max_steps == 12
    assert bridge.state.epoch == 1.0
    step = [line.split()[0] for line in recorder.lines[3:10]]
    pair = ["on_pre_optimizer_step", "on_optimizer_step"]
    assert step == ["on_step_begin", *pair, *pair, "on_step_end", "on_log"]
    pairs = [call["optimizer"] for call in recorder.given if call["event"] == "on_optimizer_step"]
    assert pairs == trainer.optimizers * 6
    assert recorder.names().count("on_step_begin") == recorder.names().count("on_step_end") == 6


class Adversaries(TwoOptimizers):
    """The loss of the second network leaves gradients in the first, which nothing uses."""

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        squares = 0.0
        for networks, optimizer in (([self.one], first), ([self.other, self.one], second)):
            optimizer.zero_grad()
            loss = sum(network(**batch)["loss"] for network in networks)
            self.manual_backward(loss)
            for weight in networks[0].parameters():
                squares += weight.grad.pow(2).sum().item()
            optimizer.step()
        self.log("expected_norm", squares**0.5)
        return loss


@pytest.mark.parametrize("interval", [1, 4])
def test_bridge_norms_leave_out_gradients_that_the_optimizer_does_not_use(interval):
    bridge, _, _ = fit(
        GradientNormCallback(),
        module=Adversaries(),
        limit_val_batches=0,
        log_every_n_steps=interval,
    )
    logs = [entry for entry in bridge.state.log_history if "loss" in entry]
    assert len(logs) == {1: 12, 4: 6}[interval]
    for entry in logs:
        assert entry["grad_norm"] == pytest.approx(entry["expected_norm"], rel=1e-5)
        layers = [value for name, value in entry.items() if name.startswith("grad_norm/")]
        squares = sum(norm * norm for norm in layers)
        assert squares**0.5 == pytest.approx(entry["grad_norm"], rel=1e-5)


def test_bridge_samples_of_limited_epochs_are_those_that_were_read():
    bridge, _, _ = fit(ThroughputCallback(), limit_train_batches=2, limit_val_batches=0)
    logs = [entry for entry in bridge.state.log_history if "samples_per_second" in entry]
    assert logs
    for entry in logs:
        samples = entry["samples_per_second"] / entry["steps_per_second"]
        assert samples == pytest.approx(4, rel=1e-4)


def test_steps_under_manual_optimization_may_take_several_batches():
    recorder = Recorder()
    fit(recorder, module=TwoOptimizers(2), limit_val_batches=0, max_epochs=1, log_every_n_steps=4)
    names = recorder.names()
    assert (
        names.count("on_substep_end")
        == names.count("on_step_begin")
        == names.count("on_step_end")
        == 3
    )
    assert [line.split()[1] for line in recorder.lines if line.startswith("on_log")] == ["4", "6"]


def test_bridge_sanity_check_fires_no_evaluation_events():
    recorder = Recorder()
    fit(recorder, num_sanity_val_steps=2, max_epochs=1)
    assert recorder.names().count("on_evaluate") == 1
    assert recorder.names().index("on_train_begin") < recorder.names().index("on_prediction_step")


def test_validate_test_and_predict_outside_of_a_training():
    recorder = Recorder()
    trainer, module = make_trainer(LightningBridge(recorder)), Automatic()
    trainer.validate(module, loader(6), verbose=False)
    trainer.test(module, loader(6), verbose=False)
    trainer.predict(module, loader(6))
    assert recorder.names() == [
        *("on_init_end", "on_prediction_step", "on_prediction_step", "on_log", "on_evaluate"),
        *("on_prediction_step", "on_prediction_step", "on_predict"),
        *("on_prediction_step", "on_prediction_step", "on_predict"),
    ]
    metrics = [call["metrics"] for call in recorder.given if call["event"] == "on_predict"]
    assert set(metrics[0]) == {"test_loss"}
    assert metrics[1] == {}


def test_bridge_changes_no_number_of_a_training():
    """The same weights, and nothing left behind in module and optimizer, nor by an exception."""
    bare = make_trainer(accumulate_grad_batches=2, gradient_clip_val=0.1)
    module, failed = Automatic(), Automatic()
    bare.fit(module, loader(), loader(6, seed=2))
    _, trainer, watched = fit(Recorder(), accumulate_grad_batches=2, gradient_clip_val=0.1)
    assert all(map(torch.equal, module.parameters(), watched.parameters()))
    assert not trainer.optimizers[0]._optimizer_step_post_hooks
    with pytest.raises(ZeroDivisionError):
        fit(At("on_step_end", lambda *args, **kwargs: 1 / 0), module=failed)
    for candidate in (watched, failed):
        assert not {"configure_gradient_clipping", "on_train_batch_start"} & set(vars(candidate))
