"""Length of a training, updates of the weights, number formats."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from helpers.contract.effects import (
    Effect,
    Place,
    becomes,
    built,
    logged,
    make,
    one_of_four,
    steps,
    trained,
    weights,
)
from helpers.contract.of_execution import Words
from helpers.trainer.tiny_trainings import Tiny, points, tiny
from lightrainer import Trainer, TrainingArguments
from lightrainer.facade.arguments import hardware, training_arguments

rates = trained(logged("learning_rate"))


def _without_output_dir(given: dict[str, Any], place: Place) -> list[str]:
    """`output_dir` is what is looked at, so the place must not set it."""
    place.folder.mkdir(parents=True)
    place.patch.chdir(place.folder)
    Trainer(model=Tiny(), args=TrainingArguments(**given), train_dataset=points()).train()
    return sorted(path.name for path in place.folder.iterdir())


def group(*names: str) -> Any:
    """The settings of the optimizer's first group, and the weights that came of them."""

    def look(trainer: Any) -> tuple[Any, Any]:
        return [trainer.optimizer.param_groups[0].get(name) for name in names], weights(trainer)

    return trained(look)


def sets(usual: Any, changed: Any) -> Any:
    """The optimizer is set so, and the weights are others for it."""
    return lambda seen, other: (seen[0], other[0]) == ([usual], [changed]) and seen[1] != other[1]


def _decays(trainer: Any) -> list[float]:
    return sorted(each["weight_decay"] for each in trainer.optimizer.param_groups)


class ProjectingAdamW(torch.optim.AdamW):
    """Stands in for the optimizer of the library, which projects the parameters that it gets."""


def _projected(given: dict[str, Any], place: Place) -> list[str]:
    """The layers whose gradients are projected to a low rank; by default, which has no such
    layer, those of "first".
    """
    place.patch.setitem(sys.modules, "apollo_torch", SimpleNamespace(APOLLOAdamW=ProjectingAdamW))
    if "optim_target_modules" not in given:
        with pytest.raises(ValueError, match="needs optim_target_modules"):
            make(given, place).create_optimizer()
    trainer = make({"optim_target_modules": ["first"], **given}, place)
    trainer.create_optimizer()
    (group,) = (group for group in trainer.optimizer.param_groups if "rank" in group)
    layers = {parameter: name for name, parameter in trainer.model.named_parameters()}
    return [layers[parameter].removesuffix(".weight") for parameter in group["params"]]


def _way(trainer: Any) -> float:
    """Return the distance of the weights from their start."""
    pairs = zip(trainer.model.parameters(), tiny().parameters(), strict=True)
    return float(
        torch.stack([(actual - initial).detach().norm() for actual, initial in pairs]).norm()
    )


def _smoothed_loss(given: dict[str, Any], place: Place) -> tuple[float, float]:
    """The evaluated loss, and what the formula gives for a factor of one half."""
    trainer = make(given, place)
    loss = trainer.evaluate()["eval_loss"]
    items = points(6, seed=2)
    with torch.no_grad():
        logits = trainer.model.logits(torch.stack([item["x"] for item in items]))
    labels = torch.stack([item["labels"] for item in items])
    expected = functional.cross_entropy(logits, labels, label_smoothing=0.5, reduction="none")
    return loss, float((expected[:4].mean() * 4 + expected[4:].mean() * 2) / 6)


def _items_of_two_processes(given: dict[str, Any], place: Place) -> int:
    trainer = make(given, place, kind=one_of_four(0, 0))
    trainer.model_accepts_loss_kwargs = True
    trainer.accelerator.gather = lambda tensor: torch.stack([tensor] * 4)
    return int(
        trainer._get_num_items_in_batch(
            [{"labels": torch.tensor([1, 2, -100])}], torch.device("cpu")
        )
    )


def computed_in(trainer: Any) -> list[torch.dtype]:
    """The number formats of a layer's outputs, and of its weights, in training and in
    evaluation.
    """
    dtypes: list[torch.dtype] = []
    hook = trainer.model.first.register_forward_hook(
        lambda module, args, output: dtypes.extend([output.dtype, module.weight.dtype])
    )
    trainer.train()
    trainer.evaluate()
    hook.remove()
    return list(dict.fromkeys(dtypes[:2] + dtypes[-2:]))


def _tf32(given: dict[str, Any], place: Place) -> tuple[bool, str]:
    """As on a machine whose GPU has TF32."""
    for module in (training_arguments, hardware):
        place.patch.setattr(module, "supports_tf32", lambda: True)
    place.patch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    torch.set_float32_matmul_precision("highest")
    try:
        make(given, place)
        return torch.get_float32_matmul_precision() == "high", torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision("highest")


SGD = {"optim": "sgd"}

ENTRIES: dict[str, Effect] = {
    "output_dir": Effect(
        "elsewhere",
        _without_output_dir,
        becomes(["trainer_output"], ["elsewhere"]),
        {"save_strategy": "epoch"},
    ),
    "per_device_train_batch_size": Effect(2, trained(steps), becomes(2, 8)),
    "num_train_epochs": Effect(1.5, trained(steps), becomes(12, 6)),
    "max_steps": Effect(3, trained(steps), becomes(4, 3)),
    # How weights are updated.
    "learning_rate": Effect(
        0.5, rates, lambda usual, changed: changed[0] == 0.5 and usual[0] == 5e-5
    ),
    "lr_scheduler_type": Effect(
        "constant", rates, lambda usual, changed: len(set(changed)) == 1 < len(set(usual))
    ),
    "lr_scheduler_kwargs": Effect(
        {"num_cycles": 2},
        rates,
        lambda usual, changed: (
            sorted(usual, reverse=True) == usual and sorted(changed, reverse=True) != changed
        ),
        {"lr_scheduler_type": "cosine_with_restarts", "num_train_epochs": 2},
    ),
    "warmup_steps": Effect(
        2, rates, lambda usual, changed: changed[0] == 0 < usual[0] and changed[2] == max(usual)
    ),
    "warmup_ratio": Effect(
        0.5, rates, lambda usual, changed: changed[0] == 0 < usual[0] and changed[2] == max(usual)
    ),
    "optim": Effect(
        "sgd", trained(lambda made: type(made.optimizer).__name__), becomes("AdamW", "SGD")
    ),
    "optim_args": Effect("momentum=0.5", group("momentum"), sets(0, 0.5), {"optim": "rmsprop"}),
    "optim_target_modules": Effect(
        ["first", "second"],
        _projected,
        becomes(["first"], ["first", "second"]),
        {"optim": "apollo_adamw"},
    ),
    "parameter_rules": Effect(
        {"second": {"lr_factor": 10}},
        trained(lambda made: [group["initial_lr"] for group in made.optimizer.param_groups]),
        becomes([0.01, 0.01], [0.01, 0.01, 0.1]),
    ),
    "weight_decay": Effect(0.1, trained(_decays), becomes([0.0, 0.0], [0.0, 0.1])),
    "adam_beta1": Effect(0.5, group("betas"), sets((0.9, 0.999), (0.5, 0.999))),
    "adam_beta2": Effect(0.5, group("betas"), sets((0.9, 0.999), (0.9, 0.5))),
    "adam_epsilon": Effect(0.1, group("eps"), sets(1e-8, 0.1)),
    "gradient_accumulation_steps": Effect(2, trained(steps), becomes(4, 2)),
    "average_tokens_across_devices": Effect(False, _items_of_two_processes, becomes(8, 2)),
    "max_grad_norm": Effect(
        1e-3, trained(_way), lambda usual, changed: changed < 4 * 1e-2 * 1e-3 * 1.01 < usual, SGD
    ),
    "label_smoothing_factor": Effect(
        0.5,
        _smoothed_loss,
        lambda usual, changed: abs(changed[0] - changed[1]) < 1e-6 < abs(usual[0] - usual[1]),
    ),
    # Number formats.
    "bf16": Effect(
        True, built(computed_in), becomes([torch.float32], [torch.bfloat16, torch.float32])
    ),
    "fp16": Effect(
        True, built(computed_in), becomes([torch.float32], [torch.float16, torch.float32])
    ),
    "bf16_full_eval": Effect(
        True,
        built(computed_in, model=Words),
        becomes([torch.float32], [torch.float32, torch.bfloat16]),
    ),
    "fp16_full_eval": Effect(
        True,
        built(computed_in, model=Words),
        becomes([torch.float32], [torch.float32, torch.float16]),
    ),
    "tf32": Effect(True, _tf32, becomes((False, "highest"), (True, "high"))),
}
