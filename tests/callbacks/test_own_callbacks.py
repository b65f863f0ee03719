"""Callbacks that measure do not wait for the device, and work in a plain Lightning Trainer too."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import default_collate

from helpers.callbacks.bridged_trainings import make_trainer as plain_trainer
from helpers.callbacks.small_training import (
    LanguageModel,
    make_trainer,
    same_bits,
    sentences,
    train_small,
    training_logs,
)
from lightrainer import LightningBridge, LossModule
from lightrainer.callbacks import (
    EMACallback,
    GradientNormCallback,
    MemoryCallback,
    RunReportCallback,
    ThroughputCallback,
    TimeLimitCallback,
    TrainerCallback,
)
from lightrainer.lightning_modules.internals import lightning_internals


def measuring():
    return [
        ThroughputCallback(peak_flops=1e12),
        MemoryCallback(),
        GradientNormCallback(),
        RunReportCallback(),
        EMACallback(0.9),
        TimeLimitCallback(7200),
    ]


pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*number of training batches",
    "ignore:You defined a",
    "ignore:.*LeafSpec",
)


class CountQuestions(TorchDispatchMode):
    """Counts `aten::_local_scalar_dense`: each makes the host wait until the device has done all
    its work.
    """

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def questions(folder, steps, callbacks):
    changes = {
        "max_steps": steps,
        "logging_steps": 1000,
        "data": sentences(32),
        "num_train_epochs": 99,
    }
    trainer = make_trainer(folder, callbacks, **changes)
    with CountQuestions() as counter:
        trainer.train()
    return counter.count


class Asks(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        bool(model.lm_head.bias[0] > 0)


def test_between_two_logs_the_device_is_asked_for_nothing(tmp_path):
    """Twice as many steps, within the same number of epochs, take as many questions."""
    short, long = (questions(tmp_path, steps, measuring()) for steps in (9, 12))
    plain_short, plain_long = (questions(tmp_path, steps, []) for steps in (9, 12))
    assert (short, long) == (plain_short, plain_long)
    assert long == short
    assert questions(tmp_path, 12, [Asks()]) == plain_long + 12  # the count would see it


def test_own_callbacks_do_not_change_the_training(tmp_path):
    changes = {"eval_strategy": "steps", "eval_steps": 4}
    changes |= {"save_strategy": "steps", "save_steps": 16}
    with_them = train_small(tmp_path / "with", measuring(), **changes)
    without = train_small(tmp_path / "without", **changes)
    losses = (
        [entry["loss"] for entry in training_logs(trainer)] for trainer in (with_them, without)
    )
    assert next(losses) == next(losses)
    # The model of a checkpoint is the trained one, that of the end has the average.
    saved = [tmp_path / name / "checkpoint-16/model.safetensors" for name in ("with", "without")]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    assert not with_them.model._forward_pre_hooks
    assert not with_them.model._forward_hooks


def fit(folder, callbacks, *, resume=None, epochs=2):
    torch.manual_seed(3)
    module = LossModule(LanguageModel())
    bridge = LightningBridge(*callbacks, output_dir=str(folder), logging_steps=2)
    loader = torch.utils.data.DataLoader(sentences(), batch_size=8, collate_fn=default_collate)
    with lightning_internals.quiet():
        trainer = plain_trainer(
            bridge, max_epochs=epochs, default_root_dir=folder, log_every_n_steps=2
        )
        trainer.fit(module, loader, ckpt_path=resume)
    return bridge, module, trainer


def test_own_callbacks_work_in_a_plain_lightning_trainer(tmp_path):
    callbacks = measuring()
    bridge, module, _ = fit(tmp_path, callbacks)
    logs = [entry for entry in bridge.state.log_history if "loss" in entry]
    expected = {
        "samples_per_second",
        "steps_per_second",
        "host_memory_gib",
        "grad_norm/h.0",
    }
    assert len(logs) >= 4
    for entry in logs[1:]:
        assert expected <= entry.keys()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "samples_per_second" in page
    ema = callbacks[4]
    assert ema.updates == 16
    assert same_bits(
        {name: parameter.detach() for name, parameter in module.model.named_parameters()},
        ema.averages,
    )


class SavesByEpochs(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_save = True


def test_ema_resumes_in_a_plain_lightning_trainer(tmp_path):
    whole, again = EMACallback(0.9), EMACallback(0.9)
    fit(tmp_path, [whole, SavesByEpochs()])
    fit(tmp_path, [again], resume=str(tmp_path / "checkpoint-8.ckpt"))
    assert again.updates == whole.updates == 16
    assert same_bits(again.averages, whole.averages)
