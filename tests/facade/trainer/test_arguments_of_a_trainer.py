"""The arguments are read when a run starts, and are never changed by the Trainer."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from helpers.contract.of_execution import Words
from helpers.trainer.tiny_trainings import (
    At,
    arguments,
    make_trainer,
    points,
    same_bits,
    tiny,
    trained_trainer,
    weights,
)
from lightrainer import PrinterCallback, Trainer, TrainingArguments

CHANGED = {
    "learning_rate": 0.5,
    "num_train_epochs": 2,
    "max_steps": 3,
    "per_device_train_batch_size": 2,
}
CHANGED |= {
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.01,
    "weight_decay": 0.5,
    "warmup_steps": 2,
}
CHANGED |= {"lr_scheduler_type": "constant", "adam_beta1": 0.1, "optim": "sgd", "logging_steps": 3}
CHANGED |= {
    "logging_strategy": "epoch",
    "eval_strategy": "epoch",
    "data_seed": 5,
    "bf16": True,
    "fp16": True,
}
CHANGED |= {
    "dataloader_drop_last": True,
    "train_sampling_strategy": "sequential",
    "label_smoothing_factor": 0.2,
}
CHANGED |= {
    "label_names": ["absent"],
    "neftune_noise_alpha": 3.0,
    "include_num_input_tokens_seen": "all",
}


def outcome(made):
    """Everything that two trainings have in common if they had the same arguments."""
    torch.manual_seed(17)
    made.train()
    made.evaluate()
    clock = ("runtime", "per_second")
    entries = [
        {k: v for k, v in entry.items() if not k.endswith(clock)}
        for entry in made.state.log_history
    ]
    return entries, {name: tensor.tolist() for name, tensor in weights(made.model).items()}


def words():
    torch.manual_seed(3)
    return Words()


@pytest.mark.parametrize("name", CHANGED)
def test_argument_changed_after_construction_takes_effect(tmp_path, name):
    """As if it had been so from the start; the control is a training without the change."""
    data = {"train_dataset": points(15), "eval_dataset": points(7, seed=2)}
    baseline = outcome(make_trainer(tmp_path, model=words(), **data))
    from_the_start = outcome(make_trainer(tmp_path, model=words(), **data, **{name: CHANGED[name]}))
    trainer = make_trainer(tmp_path, model=words(), **data)
    setattr(trainer.args, name, CHANGED[name])
    assert outcome(trainer) == from_the_start
    assert from_the_start != baseline


def test_hook_of_the_noise_is_an_attribute_of_the_trainer(tmp_path):
    trainer = make_trainer(tmp_path, model=words(), neftune_noise_alpha=3.0, max_steps=1)
    hooks = trainer.model.embedding._forward_hooks
    present = []
    trainer.add_callback(
        At("on_step_end", lambda *_: present.append(trainer.neftune_hook_handle.id in hooks))
    )
    trainer.train()
    assert present == [True]
    assert trainer.neftune_hook_handle.id not in hooks


@pytest.mark.parametrize(
    ("name", "value"), [("logging_steps", -1), ("lr_scheduler_type", "lineal"), ("optim", "adam")]
)
def test_invalid_values_set_later_are_refused(tmp_path, name, value):
    trainer = make_trainer(tmp_path)
    setattr(trainer.args, name, value)
    with pytest.raises(ValueError, match=str(value)):
        trainer.train()


@pytest.mark.parametrize("run", ["evaluate", "train"])
def test_argument_value_mutated_in_place_is_refused_at_the_next_run(tmp_path, run):
    """Arguments that did not change since the last run are not checked again."""
    trainer = make_trainer(tmp_path, eval_dataset=points(7), include_for_metrics=["loss"])
    trainer.evaluate()
    trainer.args.include_for_metrics.append("nothing")
    for _ in range(2):
        with pytest.raises(ValueError, match="nothing"):
            getattr(trainer, run)()


def test_arguments_of_a_user_may_hold_anything(tmp_path):
    """Such as tensors, which cannot be compared by ==, and locks, which cannot be copied."""

    @dataclass
    class Own(TrainingArguments):
        weights: Any = None
        lock: Any = None

    args = Own(str(tmp_path), report_to=[], disable_tqdm=True)
    args.weights = torch.ones(2)
    args.lock = threading.Lock()
    trainer = Trainer(tiny(), args, eval_dataset=points(7))
    trainer.evaluate()
    args.logging_steps = -1
    with pytest.raises(ValueError, match="logging_steps"):
        trainer.evaluate()


def test_output_dir_changed_after_construction(tmp_path):
    trainer = make_trainer(tmp_path / "first", save_strategy="epoch")
    trainer.args.output_dir = str(tmp_path / "second")
    trainer.train()
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["checkpoint-4"]


def test_arguments_are_never_changed(tmp_path):
    saving = {
        "eval_strategy": "steps",
        "eval_steps": 0.5,
        "save_strategy": "steps",
        "save_steps": 0.5,
    }
    shares = {"logging_steps": 0.25, "warmup_steps": 0.1, "load_best_model_at_end": True}
    args = arguments(
        tmp_path, **saving, **shares, gradient_accumulation_steps=2, hub_token="hf_secret"
    )
    before, attributes = args.to_dict(), dict(vars(args))
    trainer = trained_trainer(tmp_path, args=args)
    trainer.evaluate()
    trainer.predict(points(3))
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    assert trainer.args is args
    assert args.to_dict() == before
    assert vars(args) == attributes


def test_passed_objects_are_not_changed(tmp_path):
    """Neither samples nor lists and dicts of the user."""
    data, callbacks = points(), [PrinterCallback()]
    copies = [{name: tensor.clone() for name, tensor in item.items()} for item in data]
    optimizer_options = (torch.optim.SGD, {"lr": 0.1})
    trained_trainer(
        tmp_path,
        train_dataset=data,
        callbacks=callbacks,
        optimizer_cls_and_kwargs=optimizer_options,
    )
    assert all(same_bits(item, before) for item, before in zip(data, copies, strict=True))
    assert len(callbacks) == 1
    assert optimizer_options == (torch.optim.SGD, {"lr": 0.1})
