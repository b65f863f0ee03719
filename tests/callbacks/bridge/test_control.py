"""Switches that TrainerCallbacks set are obeyed by Lightning, also after a resumption."""

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from helpers import HELPERS
from helpers.callbacks.bridged_trainings import (
    Automatic,
    Network,
    Recorder,
    facade,
    fit,
    loader,
    make_trainer,
    points,
    raising,
)
from helpers.lightning.tiny_modules import same_weights
from helpers.processes.starting import finished_ranks
from lightrainer import (
    EarlyStoppingCallback,
    EMACallback,
    ExportableState,
    GradientNormCallback,
    LightningBridge,
    LossModule,
    NaNGuardCallback,
    PrinterCallback,
    ProfilerCallback,
    ProgressCallback,
    RunReportCallback,
    TensorBoardCallback,
    TrainerCallback,
    callbacks,
)
from lightrainer.callbacks.bridge.logs import LogCollector
from lightrainer.lightning_modules import FolderCheckpointIO, build_loader, set_seed
from lightrainer.lightning_modules.tasks.resuming import ResumingCallback


def steps_of(recorder, event):
    return [int(line.split()[1]) for line in recorder.lines if line.startswith(f"{event} ")]


def test_callback_without_the_bridge_warns():
    with pytest.raises(
        AttributeError, match=r"Recorder.*callbacks=\[LightningBridge\(Recorder\(\)\)\]"
    ):
        make_trainer(Recorder()).fit(Automatic(), loader())


@pytest.mark.parametrize(
    "event", ["on_step_begin", "on_step_end", "on_evaluate", "on_epoch_end", "on_train_begin"]
)
def test_should_training_stop(event):
    recorder = Recorder()
    step = {
        "on_step_begin": 3,
        "on_step_end": 4,
        "on_evaluate": 6,
        "on_epoch_end": 6,
        "on_train_begin": 0,
    }[event]
    _, trainer, _ = fit(recorder, raising(event, "should_training_stop", step))
    assert trainer.global_step == {"on_step_begin": 4, "on_train_begin": 0}.get(event, step)
    assert recorder.names().index("on_train_end") == len(recorder.names()) - 1


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "event", ["on_step_begin", "on_substep_end", "on_step_end", "on_epoch_begin"]
)
def test_should_epoch_stop(tmp_path, capsys, event, accumulation):
    """The rest of the epoch is left out, its end is told, and the next begins: as under the
    facade.
    """
    expected, actual, stop = Recorder(), Recorder(), raising(event, "should_epoch_stop", 1)
    facade(
        tmp_path,
        expected,
        Network(),
        stop,
        num_train_epochs=3,
        gradient_accumulation_steps=accumulation,
    )
    module = LossModule(Network())
    fit(
        stop,
        actual,
        module=module,
        accumulate_grad_batches=accumulation,
        limit_val_batches=0,
        max_epochs=3,
    )
    assert steps_of(actual, "on_epoch_end") == steps_of(expected, "on_epoch_end")
    # the facade stops at the steps that it has planned
    ended = len(actual.lines) if event == "on_substep_end" else 12
    assert actual.names()[:ended] == expected.names()[:ended]


def test_should_log():
    """The loss is the mean since the last log."""
    losses = []
    for interval, steps in ((1, [*range(1, 13), 12]), (5, [2, 5, 10, 12])):
        recorder = Recorder()
        fit(
            recorder,
            raising("on_step_end", "should_log", 2),
            log_every_n_steps=interval,
            limit_val_batches=0,
        )
        assert steps_of(recorder, "on_log") == steps
        losses.append(
            [call["logs"]["loss"] for call in recorder.given if "loss" in call.get("logs", {})]
        )
    each = losses[0]
    assert losses[1] == pytest.approx(
        [sum(each[a:b]) / (b - a) for a, b in ((0, 2), (2, 5), (5, 10))]
    )


@pytest.mark.parametrize("event", ["on_step_end", "on_epoch_end"])
def test_should_evaluate(event):
    """Lightning validates at once, and by its own schedule as before."""
    baseline, recorder = Recorder(), Recorder()
    _, _, plain = fit(baseline, max_epochs=3, check_val_every_n_epoch=3)
    step = {"on_step_end": 4, "on_epoch_end": 6}[event]
    asks = raising(event, "should_evaluate", step)
    _, trainer, module = fit(recorder, asks, max_epochs=3, check_val_every_n_epoch=3)
    assert all(map(torch.equal, plain.parameters(), module.parameters()))
    assert steps_of(baseline, "on_evaluate") == [18]
    assert steps_of(recorder, "on_evaluate") == [step, 18]
    assert trainer.val_check_batch == 6
    assert trainer.check_val_every_n_epoch == 3
    event_names = [
        name
        for name in recorder.names()
        if name not in ("on_evaluate", "on_prediction_step", "on_log")
    ]
    assert event_names == [
        name
        for name in baseline.names()
        if name not in ("on_evaluate", "on_prediction_step", "on_log")
    ]


@pytest.mark.parametrize("event", ["on_step_end", "on_evaluate", "on_epoch_end"])
def test_should_save(tmp_path, event):
    """A checkpoint of Lightning, from which the training continues to the same weights."""
    step = {"on_step_end": 4}.get(event, 6)
    recorder = Recorder()
    settings = {"output_dir": str(tmp_path / "out")}
    _, _, whole = fit(recorder, raising(event, "should_save", step), bridge=settings)
    assert steps_of(recorder, "on_save") == [step]
    path = tmp_path / "out" / f"checkpoint-{step}.ckpt"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [path.name]
    if event == "on_step_end":
        return  # a plain loader does not resume in mid-epoch
    _, trainer, module = fit(ckpt_path=path)
    assert trainer.global_step == 12
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), module.parameters(), strict=True)
    )


def test_bridge_speed_after_a_resumption_counts_its_own_steps(tmp_path):
    fit(raising("on_epoch_end", "should_save", 6), bridge={"output_dir": str(tmp_path)})
    bridge, trainer, _ = fit(ckpt_path=tmp_path / "checkpoint-6.ckpt")
    assert trainer.global_step == 12
    summary = bridge.state.log_history[-1]
    steps = summary["train_steps_per_second"] * summary["train_runtime"]
    assert steps == pytest.approx(6, rel=0.05)


class AsksAtTheSecondStep(callbacks.JITCheckpointCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.is_checkpoint_requested = True
        super().on_step_end(args, state, control, **kwargs)


@pytest.mark.parametrize("make", [lambda: callbacks.TimeLimitCallback(1e-6), AsksAtTheSecondStep])
def test_bridge_delayed_stop_saves_once(tmp_path, make):
    """Training continues until `min_epochs` and `min_steps` are reached."""
    _, trainer, _ = fit(make(), bridge={"output_dir": str(tmp_path)}, min_epochs=2)
    assert trainer.current_epoch == 2
    assert len(list(tmp_path.glob("checkpoint-*.ckpt"))) == 1


def test_bridge_save_total_limit_keeps_the_best(tmp_path):
    settings = {
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 2,
        "output_dir": str(tmp_path),
    }
    settings |= {"metric_for_best_model": "val_loss", "eval_strategy": "steps", "eval_steps": 4}
    bridge, _, _ = fit(bridge=settings)
    best = bridge.state.best_model_checkpoint
    assert bridge.state.best_global_step in (4, 6, 8, 12)
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint-12.ckpt",
        Path(best).name,
    } | ({"checkpoint-10.ckpt"} if best.endswith("-12.ckpt") else set())


def test_folders_in_the_documented_layout(tmp_path):
    """With the plugin that writes them, `should_save` gives `checkpoint-N`, and training resumes
    from it.
    """
    module = LossModule(Network())
    bridge = LightningBridge(raising("on_step_end", "should_save", 6), output_dir=str(tmp_path))
    make_trainer(bridge, plugins=[FolderCheckpointIO(module)], limit_val_batches=0).fit(
        module, loader(), loader(6)
    )
    assert (tmp_path / "checkpoint-6" / "model.safetensors").is_file()
    again = LightningBridge(Recorder())
    trainer = make_trainer(again, limit_val_batches=0)
    trainer.fit(LossModule(Network()), loader(), loader(6), ckpt_path=tmp_path / "checkpoint-6")
    assert again.state.global_step == 12
    assert [entry["step"] for entry in again.state.log_history if "loss" in entry] == list(
        range(1, 13)
    )


@pytest.mark.parametrize(
    ("when", "steps"), [("every_n_train_steps", [4, 8, 12]), ("every_n_epochs", [6, 12])]
)
def test_bridge_reports_model_checkpoint_saves(tmp_path, when, steps):
    """Its files are `on_save` too, told once each, and the best is the state's."""
    recorder = Recorder()
    number = {"every_n_train_steps": 4, "every_n_epochs": 1}[when]
    saving = ModelCheckpoint(
        dirpath=tmp_path / "own", save_top_k=-1, monitor="val_loss", **{when: number}
    )
    interval = 2 if when == "every_n_train_steps" else 1.0
    options = {"callbacks": [saving], "enable_checkpointing": True, "val_check_interval": interval}
    bridge, _, _ = fit(recorder, **options)
    assert steps_of(recorder, "on_save") == steps
    assert len(list((tmp_path / "own").iterdir())) == len(steps)
    assert bridge.state.best_model_checkpoint == saving.best_model_path
    assert (bridge.args.metric_for_best_model, bridge.args.greater_is_better) == (
        "eval_loss",
        False,
    )
    assert bridge.args.output_dir == str(tmp_path / "own")


class Counting(TrainerCallback, ExportableState):
    """Its count should continue in a resumed training."""

    def __init__(self, start=0):
        self.start = start
        self.count = start

    def on_step_end(self, args, state, control, **kwargs):
        self.count += 1

    def state(self):
        return {"args": {"start": self.start}, "attributes": {"count": self.count}}


def test_bridge_resumes_from_a_lightning_checkpoint(tmp_path):
    """State, history and stateful callbacks, in the very objects that were passed; the epoch in
    the middle too.
    """
    first, second = Counting(), Counting()
    whole, _, _ = fit(
        Counting(), bridge={"metric_for_best_model": "accuracy"}, val_check_interval=2
    )
    saving = raising("on_step_end", "should_save", 4)
    settings = {"output_dir": str(tmp_path), "metric_for_best_model": "accuracy"}
    fit(first, saving, bridge=settings, val_check_interval=2, max_steps=4)
    recorder = Recorder()
    file = tmp_path / "checkpoint-4.ckpt"
    bridge, _, _ = fit(second, recorder, bridge=settings, ckpt_path=file, val_check_interval=2)
    assert (first.count, second.count) == (4, 12)
    assert recorder.lines[1].split()[:3] == ["on_train_begin", "4", "0.6667"]
    assert bridge.state.max_steps == whole.state.max_steps == 12
    steps = [
        [entry["step"] for entry in of.state.log_history if "loss" in entry]
        for of in (bridge, whole)
    ]
    assert steps[0] == steps[1] == list(range(1, 13))


def without_times(history):
    """Drop what differs between two equal trainings, and the mean loss of the resumed part."""
    entries = []
    for entry in history:
        names = [name for name in entry if not name.endswith(("runtime", "per_second"))]
        entries.append({name: entry[name] for name in names if name != "train_loss"})
    return entries


def fit_with_checkpoints(folder, *callbacks, **options):
    """Train on a loader that resumes exactly, with a checkpoint at each step."""
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    options |= {"callbacks": [ResumingCallback(), saving], "enable_checkpointing": True}
    return fit(*callbacks, train=build_loader(points(22), batch_size=4), **options)


@pytest.mark.parametrize("interval", [1.0, 4])
def test_the_history_of_a_resumed_training_is_the_whole_one(tmp_path, interval):
    """From each step: between two logs, after a validation, and at the last step of an epoch,
    which Lightning ends without a batch.
    """
    settings = {"metric_for_best_model": "val_loss", "logging_steps": 3}
    options = {"bridge": settings, "val_check_interval": interval}
    whole, _, _ = fit_with_checkpoints(tmp_path / "whole", **options)
    for step in range(1, 12):
        file = tmp_path / "whole" / f"step={step}.ckpt"
        folder = tmp_path / f"from {step}"
        resumed, trainer, _ = fit_with_checkpoints(folder, ckpt_path=file, **options)
        assert trainer.global_step == 12
        assert without_times(resumed.state.log_history) == without_times(whole.state.log_history)
        assert resumed.state.best_metric == whole.state.best_metric


@pytest.mark.parametrize(
    ("settings", "after_validation"),
    [({"eval_strategy": "steps", "eval_steps": 3}, False), ({"eval_strategy": "epoch"}, True)],
    ids=["before an evaluation", "after an evaluation"],
)
def test_bridge_evaluates_once_after_a_resumption(tmp_path, settings, after_validation):
    """From checkpoints between the request for an evaluation and its end, and after it."""
    triggers = {"every_n_train_steps": 1}
    if after_validation:
        triggers = {"every_n_epochs": 1, "save_on_train_epoch_end": False}

    def history_of(folder, **options):
        saving = ModelCheckpoint(folder, "{step}", save_top_k=-1, **triggers)
        options |= {"callbacks": [ResumingCallback(), saving], "enable_checkpointing": True}
        loader = build_loader(points(22), batch_size=4)
        bridge, _, _ = fit(train=loader, bridge={"logging_steps": 3, **settings}, **options)
        return without_times(bridge.state.log_history)

    whole = history_of(tmp_path / "whole")
    files = sorted((tmp_path / "whole").glob("*.ckpt"))
    assert len(files) == (2 if after_validation else 12)
    for file in files:
        if file.stem != "step=12":
            assert history_of(tmp_path / file.stem, ckpt_path=file) == whole


class Drawing(Automatic):
    """Draws random numbers in training and validation."""

    def training_step(self, batch, batch_idx):
        x = batch["x"] + 0.1 * torch.randn_like(batch["x"])
        return super().training_step({**batch, "x": x}, batch_idx)

    def validation_step(self, batch, batch_idx):
        torch.rand(5)
        return super().validation_step(batch, batch_idx)


def test_bridge_resumes_after_its_evaluation_of_an_epoch(tmp_path):
    """The checkpoint is written at the end of that evaluation."""

    def trained(folder, ckpt_path=None):
        settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "output_dir": folder}
        bridge = LightningBridge(**settings)
        trainer = make_trainer(bridge, ResumingCallback(), check_val_every_n_epoch=5)
        module = Drawing()
        set_seed(7)
        if ckpt_path is not None:
            torch.rand(11)
        train = build_loader(points(22), batch_size=4)
        trainer.fit(module, train, loader(10), ckpt_path=ckpt_path)
        return module

    whole = trained(tmp_path / "whole")
    resumed = trained(tmp_path / "resumed", tmp_path / "whole" / "checkpoint-6.ckpt")
    assert same_weights(whole, resumed)


def test_losses_in_a_checkpoint_are_means_over_processes():
    """A process loads the checkpoint of process 0, and adds its own losses to it."""
    reduced = []

    def reduce(tensor, reduce_op):
        reduced.append(reduce_op)
        return tensor / 2  # the other process has losses of 0

    strategy = SimpleNamespace(root_device="cpu", reduce=reduce)
    trainer = SimpleNamespace(world_size=2, strategy=strategy, accumulate_grad_batches=1)
    module = SimpleNamespace(automatic_optimization=True)
    logs = LogCollector()
    logs.add_loss(trainer, module, torch.tensor(4.0))
    logs.end_step(module)
    logs.add_loss(trainer, module, torch.tensor(6.0))
    losses = logs.losses_since_log(trainer)
    assert (losses["sums"].tolist(), losses["counts"], reduced) == ([2.0, 3.0], [1, 1], ["mean"])

    resumed = LogCollector()
    resumed.load_losses(losses, trainer)
    resumed.add_loss(trainer, module, torch.tensor(1.0))
    assert resumed.losses_since_log(trainer)["sums"].tolist() == [1.0, 2.0]


def test_training_logs_have_no_metrics_of_a_validation():
    bridge, _, _ = fit(bridge={"logging_steps": 1}, val_check_interval=2, enable_checkpointing=True)
    logs = [entry for entry in bridge.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logs] == list(range(1, 13))
    assert not any("val_loss" in entry for entry in logs)


def test_should_epoch_stop_is_obeyed_after_a_resumption(tmp_path):
    """The checkpoint is written at the step that set it."""
    stopping = raising("on_step_end", "should_epoch_stop", 3)
    _, whole, _ = fit_with_checkpoints(tmp_path / "whole", stopping)
    file = tmp_path / "whole" / "step=3.ckpt"
    _, resumed, _ = fit_with_checkpoints(tmp_path / "resumed", stopping, ckpt_path=file)
    assert resumed.global_step == whole.global_step == 9


def test_early_stopping(tmp_path, caplog):
    """Patience runs out on a metric that gets worse; a resumed training continues its count."""
    worse = {
        "metric_for_best_model": "val/accuracy",
        "greater_is_better": False,
        "output_dir": str(tmp_path),
    }
    with caplog.at_level(logging.ERROR):
        bridge, trainer, _ = fit(patient(), bridge=worse, max_epochs=9)
    assert trainer.current_epoch == 4
    assert bridge.state.global_step == 24
    fit(patient(), raising("on_epoch_end", "should_save", 12), bridge=worse, max_epochs=2)
    again = patient()
    _, trainer, _ = fit(
        again, bridge=worse, max_epochs=9, ckpt_path=tmp_path / "checkpoint-12.ckpt"
    )
    assert again.early_stopping_patience_counter >= 3
    assert trainer.current_epoch == 4


def test_callbacks_read_only_settings_that_the_bridge_has():
    """Settings of callbacks that belong to the Trainer are left out."""
    trainer_only = {"enable_jit_checkpoint", "save_only_model"}
    files = [
        *Path(callbacks.__file__).parent.glob("*.py"),
        *Path(callbacks.__file__).parent.glob("[lr]*/*.py"),
    ]
    read = {name for file in files for name in re.findall(r"\bargs\.(\w+)", file.read_text())}
    args = LightningBridge().args
    assert {"output_dir", "eval_strategy"} <= read
    assert [name for name in sorted(read - trainer_only) if not hasattr(args, name)] == []


def test_bridge_profiler_reports(tmp_path):
    _, trainer, _ = fit(ProfilerCallback(), bridge={"output_dir": str(tmp_path)}, max_epochs=3)
    assert trainer.global_step == 18
    assert list(tmp_path.rglob("*.json*"))


def test_bridge_stops_the_profiler_of_a_training_that_fails():
    """With a running profiler the process would crash at its exit."""

    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("step failed")

    with pytest.raises(RuntimeError, match="step failed"):
        fit(ProfilerCallback(0, 1, 8), Fails())
    assert not torch.autograd._profiler_enabled()


def test_nan_guard_with_rollback_is_refused_by_what_is_missing(tmp_path):
    settings = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 2}
    with pytest.raises(ValueError, match="a LightningBridge does not write"):
        fit(NaNGuardCallback("go_back"), bridge=settings)


def with_model():
    return LossModule(
        Network(), optimizer={"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    )


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`:UserWarning")
def test_train_loss_leaves_out_batches_without_a_loss():
    """Not even the loss of the step before them counts in their place."""
    losses = []

    class Skips(LossModule):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if batch_idx in (1, 4):
                return None
            losses.append(loss.item())
            return loss

    bridge, _, _ = fit(module=Skips(Network()), max_epochs=1)
    assert len(losses) == 4
    assert bridge.state.log_history[-1]["train_loss"] == pytest.approx(sum(losses) / 4)


def averaged_training(make_module, folder, resume_from=None, *callbacks, **options):
    """Validate the averages, and keep the best file and one of each epoch."""
    saving = ModelCheckpoint(
        folder, filename="{epoch}", monitor="val_loss", save_top_k=-1, **options
    )
    torch.manual_seed(3)
    averaging = EMACallback(decay=0.8)
    module, bridge = make_module(), LightningBridge(averaging, *callbacks, output_dir=str(folder))
    trainer = make_trainer(bridge, saving, max_epochs=3, enable_checkpointing=True)
    trainer.fit(module, loader(), loader(10, 2), ckpt_path=resume_from)
    return module, saving


@pytest.mark.parametrize("make_module", [with_model, Automatic])
def test_files_hold_the_weights_that_were_validated_and_resume_those_that_were_trained(
    tmp_path, make_module
):
    """Also of `Automatic`, which calls its network instead of itself."""
    module, saving = averaged_training(make_module, tmp_path)
    trainer = make_trainer()
    for path, score in saving.best_k_models.items():
        loaded = make_module()
        loaded.load_state_dict(torch.load(path)["state_dict"])
        assert trainer.validate(loaded, loader(10, 2), verbose=False)[0][
            "val_loss"
        ] == pytest.approx(score.item())
    resumed, _ = averaged_training(make_module, tmp_path, tmp_path / "epoch=0.ckpt")
    for expected, actual in zip(module.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, actual)


def test_bridge_validates_averages_of_a_module_that_calls_its_parts(tmp_path):
    """Like those of a module that has the same network as its `model`."""

    class Named(Automatic):
        def __init__(self):
            super().__init__()
            self.model = self.network

    scores = []
    for kind in (Automatic, Named):
        _, saving = averaged_training(kind, tmp_path / kind.__name__)
        scores.append([score.item() for score in saving.best_k_models.values()])
    assert scores[0] == scores[1]


def test_bridge_file_of_an_interrupted_validation_resumes_the_trained_weights(tmp_path):
    """It is written while the module has the averages."""

    class Saves(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            args.trainer.save_checkpoint(tmp_path / f"{state.global_step}.ckpt")

    whole, _ = averaged_training(with_model, tmp_path / "whole", None, Saves())
    resumed, _ = averaged_training(with_model, tmp_path / "resumed", tmp_path / "12.ckpt")
    for expected, actual in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, actual)


def test_bridge_leaves_the_average_in_the_model_of_a_complete_training(tmp_path):
    module, _ = averaged_training(with_model, tmp_path)
    resumed, _ = averaged_training(with_model, tmp_path, tmp_path / "epoch=2.ckpt")
    for expected, actual in zip(module.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize("make_module", [with_model, Automatic])
def test_bridge_file_of_a_finished_training_continues_with_the_trained_weights(
    tmp_path, make_module
):
    """At that point the model, and so the file, has the average."""

    def train(epochs, resume_from=None):
        torch.manual_seed(3)
        module = make_module()
        trainer = make_trainer(LightningBridge(EMACallback(decay=0.8)), max_epochs=epochs)
        trainer.fit(module, loader(), loader(10, 2), ckpt_path=resume_from)
        return trainer, module

    _, whole = train(4)
    finished, averaged = train(2)
    finished.save_checkpoint(tmp_path / "finished.ckpt")
    stored = torch.load(tmp_path / "finished.ckpt")["state_dict"]
    for name, weight in averaged.named_parameters():
        assert torch.equal(stored[name], weight)
    _, resumed = train(4, tmp_path / "finished.ckpt")
    for expected, actual in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, actual)


def test_bridge_starts_from_scratch_after_the_validation_of_a_checkpoint(tmp_path):
    bridge = LightningBridge(EarlyStoppingCallback(3), metric_for_best_model="val_loss")
    first = make_trainer(bridge, max_epochs=2)
    first.fit(with_model(), loader(), loader(10, 2))
    first.save_checkpoint(tmp_path / "file.ckpt")

    bridge = LightningBridge(EarlyStoppingCallback(3), metric_for_best_model="val_loss")
    trainer = make_trainer(bridge, max_epochs=1)
    trainer.validate(with_model(), loader(10, 2), ckpt_path=tmp_path / "file.ckpt", verbose=False)
    assert bridge.state.global_step == first.global_step

    trainer.fit(with_model(), loader(), loader(10, 2))
    evaluations = [entry for entry in bridge.state.log_history if "eval_loss" in entry]
    assert [entry["epoch"] for entry in evaluations] == [1.0]
    assert bridge.state.best_metric == evaluations[0]["eval_loss"]


def test_bridge_removes_averages_from_a_training_that_fails():
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("out of order")

    module = with_model()
    trainer = make_trainer(LightningBridge(EMACallback(0.5), Fails()), max_epochs=1)
    with pytest.raises(RuntimeError, match="out of order"):
        trainer.fit(module, loader(), loader(10, 2))

    # A model with the same weights, to which no average was ever attached.
    trained = with_model()
    trained.load_state_dict(module.state_dict())
    results = [
        trainer.validate(each, loader(10, 2), verbose=False)[0]["val_loss"]
        for each in (module, trained)
    ]
    assert results[0] == results[1]


def test_files_of_weights_only_hold_the_weights_that_were_validated(tmp_path):
    """Lightning tells no callback of them; they fire `on_save` too."""
    recorder = Recorder()
    _, saving = averaged_training(with_model, tmp_path, None, recorder, save_weights_only=True)
    for path, score in saving.best_k_models.items():
        loaded = with_model()
        loaded.load_state_dict(torch.load(path)["state_dict"])
        (result,) = make_trainer().validate(loaded, loader(10, 2), verbose=False)
        assert result["val_loss"] == pytest.approx(score.item())
    assert steps_of(recorder, "on_save") == [6, 12, 18]


def patient():
    return EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=10.0)


def test_printer_progress_tensorboard_and_loss_curve(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    pytest.importorskip("matplotlib")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"output_dir": str(tmp_path / "out"), "logging_dir": str(tmp_path / "logs")}
    fit(
        PrinterCallback,
        ProgressCallback,
        TensorBoardCallback(),
        RunReportCallback(),
        bridge=settings,
        max_epochs=2,
    )
    shown = capsys.readouterr()
    assert "'loss': " in shown.out
    assert "'eval_loss': " in shown.out
    assert "12/12" in shown.err
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 13))
    assert [event.step for event in events.Scalars("eval/accuracy")] == [6, 12]
    assert (tmp_path / "out" / "report.png").stat().st_size > 5000


def test_metrics_that_are_logged_for_an_epoch(capsys):
    """Those that a module logs `on_epoch` come once, at its end; those of steps do not come
    again.
    """

    class Epochs(Automatic):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train_both", loss, on_step=True, on_epoch=True, batch_size=4)
            self.log("train_late", loss, on_step=False, on_epoch=True, batch_size=4)
            return loss

    recorder = Recorder()
    bridge, _, _ = fit(recorder, module=Epochs(), limit_val_batches=0, log_every_n_steps=4)
    late = [(entry["step"], set(entry)) for entry in bridge.state.log_history if "late" in entry]
    assert [step for step, _ in late] == [6, 12]
    assert all("loss" not in names and "size" not in names for _, names in late)
    assert [entry["step"] for entry in bridge.state.log_history if "loss" in entry] == [4, 8, 12]


def test_bridge_stream_epochs_are_shares_of_the_training():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(points(40))

    recorder = Recorder()
    fit(
        recorder,
        train=DataLoader(Stream(), batch_size=4),
        max_steps=5,
        max_epochs=-1,
        limit_val_batches=0,
    )
    epochs = [float(line.split()[2]) for line in recorder.lines if line.startswith("on_step_end")]
    assert epochs == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_bridge_is_reused_by_two_trainings():
    """Each new trainer starts with a new state; a trainer that continues keeps its state."""
    recorder = Recorder()
    bridge, module = LightningBridge(recorder), Automatic()
    for _ in range(2):
        make_trainer(bridge).fit(module, loader(), loader(6, seed=2))
        assert bridge.state.global_step == 12
        assert len([entry for entry in bridge.state.log_history if "loss" in entry]) == 12
    assert recorder.names().count("on_init_end") == 1
    assert recorder.names().count("on_train_begin") == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [("loging_steps", "Did you mean 'logging_steps'"), ("max_steps", "Set it on")],
)
def test_bridge_refuses_unknown_settings(name, message):
    with pytest.raises(TypeError, match=message):
        LightningBridge(**{name: 3})


def test_arguments_are_read_under_documented_names():
    settings = {"run_name": "tried", "logging_steps": 3}
    bridge, trainer, _ = fit(accumulate_grad_batches=2, gradient_clip_val=0.5, bridge=settings)
    expected = {
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "learning_rate": 0.1,
    }
    expected |= {
        "per_device_train_batch_size": 4,
        "world_size": 1,
        "eval_strategy": "epoch",
        "run_name": "tried",
    }
    expected |= {"logging_steps": 3, "save_strategy": "no", "max_steps": -1}
    expected |= {"device": str(trainer.strategy.root_device)}
    written = bridge.args.to_dict()
    assert {name: written[name] for name in expected} == expected


def norms_of(bridge):
    """The norms of all gradients, and those that the norms of the layers add up to."""
    norms, sums = [], []
    for entry in bridge.state.log_history:
        layers = [value for name, value in entry.items() if name.startswith("grad_norm/")]
        if layers:
            norms.append(entry["grad_norm"])
            sums.append(sum(value**2 for value in layers) ** 0.5)
    assert norms
    return norms, sums


@pytest.mark.parametrize("algorithm", ["value", "norm"])
@pytest.mark.parametrize("make_module", [Automatic, lambda: LossModule(Network())])
def test_bridge_norms_are_those_before_clipping(make_module, algorithm):
    options = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": algorithm}
    bridge, _, _ = fit(GradientNormCallback(), module=make_module(), **options)
    norms, sums = norms_of(bridge)
    assert sums == pytest.approx(norms, rel=1e-4)
    assert min(norms) > 0.01
    if algorithm == "value":
        assert bridge.args.max_grad_norm == 0


class Fused(Automatic):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-5, fused=True)


class Unfused(Automatic):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-5)


def loss_module(name):
    torch.manual_seed(3)
    return LossModule(Network(), optimizer={"name": name})


@pytest.mark.parametrize(
    ("fused", "unfused"),
    [
        (Fused, Unfused),
        (lambda: loss_module("adamw_torch_fused"), lambda: loss_module("adamw_torch")),
    ],
    ids=["own", "LossModule"],
)
def test_bridge_norms_are_those_without_the_loss_scale(fused, unfused):
    """A fused optimizer divides the gradients in its step, after hooks have read them."""
    runs = []
    for make in (fused, unfused):
        scaled = {"plugins": [MixedPrecision("16-mixed", "cpu")], "accelerator": "cpu"}
        bridge, _, module = fit(GradientNormCallback(), module=make(), **scaled)
        runs.append((norms_of(bridge), module))
    (fused_norms, fused_module), (expected, expected_module) = runs
    for norms, expected_norms in zip(fused_norms, expected, strict=True):
        assert norms == pytest.approx(expected_norms, rel=1e-3)
    weights = zip(fused_module.parameters(), expected_module.parameters(), strict=True)
    for weight, other in weights:
        torch.testing.assert_close(weight, other)


class Overflows(Automatic):
    """The gradients of the third batch are too large for float16, its loss is not."""

    def training_step(self, batch, batch_idx):
        loss = self.network(**batch)["loss"].float()
        return loss * 1e9 if batch_idx == 2 else loss


def test_bridge_nan_guard_checks_gradients_without_a_loss_scaler():
    guard = NaNGuardCallback("skip")
    _, _, module = fit(
        guard, module=Overflows(), precision="16-true", limit_val_batches=0, max_epochs=1
    )
    assert guard.skipped == [3]
    assert all(weight.isfinite().all() for weight in module.parameters())


class OwnLoss(torch.nn.Linear):
    """Has labels as its second argument."""

    def forward(self, rows, labels):
        return torch.nn.functional.cross_entropy(super().forward(rows), labels)


def test_bridge_nan_guard_ignores_a_micro_batch_without_labels():
    guard = NaNGuardCallback("skip")
    labels = torch.tensor([0, 1, -100, -100, 2, 0, 1, 2])
    train = DataLoader(TensorDataset(torch.randn(8, 4), labels), batch_size=2)
    module = LossModule(OwnLoss(4, 3))
    bridge, _, _ = fit(
        guard, module=module, train=train, accumulate_grad_batches=2, limit_val_batches=0
    )
    assert guard.skipped == []
    assert bridge.state.global_step == 4


def test_bridge_logs_the_norm_of_sparse_gradients():
    class Words(Automatic):
        def __init__(self, sparse):
            super().__init__()
            torch.manual_seed(3)
            self.words = torch.nn.Embedding(5, 4, sparse=sparse)

        def training_step(self, batch, batch_idx):
            return self.words(torch.tensor([0, 1, 1])).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.words.parameters(), lr=0.1)

    norms = []
    for sparse in (False, True):
        bridge, _, _ = fit(module=Words(sparse), max_epochs=1, limit_val_batches=0)
        norms.append([entry.get("grad_norm") for entry in bridge.state.log_history])
    assert None not in norms[0][:-1]
    assert norms[1] == pytest.approx(norms[0])


def test_bridge_logs_no_norm_of_a_part_of_the_gradients():
    """Also under a subclass of a strategy that shards them."""

    class OwnStrategy(FSDPStrategy):
        pass

    module = Automatic()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for strategy, count in ((OwnStrategy(), 0), (DDPStrategy(), 1)):
        logs = LogCollector()
        logs.record_grad_norm(SimpleNamespace(strategy=strategy), module, optimizer)
        assert len(logs.grad_norms) == count


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
def test_bridge_in_two_processes(tmp_path):
    """Under DDP all processes hear the same events, the loss is the mean of all, and the first
    one alone shows.
    """
    script = HELPERS / "callbacks" / "bridge_script.py"
    output = finished_ranks(
        script, str(tmp_path), log=tmp_path / "log", seconds=120, CUDA_VISIBLE_DEVICES=""
    )
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["lines"] == second["lines"]
    assert first["losses"] == second["losses"]
    assert first["own_losses"] != second["own_losses"]
    means = [
        (left + right) / 2
        for left, right in zip(first["own_losses"], second["own_losses"], strict=True)
    ]
    assert first["losses"] == pytest.approx(means, rel=1e-5)
    assert (first["zero"], second["zero"]) == (True, False)
    assert first["steps"] == second["steps"] == 4, (
        "the second process alone wanted to stop, after an evaluation"
    )
    assert output.count("'eval_loss'") == first["evaluations"]
