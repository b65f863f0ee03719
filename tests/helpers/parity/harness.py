"""Trains the same thing with the reference and with lightrainer, and collects all that must come
out the same.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.comparing.bit_differences import differences, without_clock
from helpers.devices.pretended_cuda import trains_on_device
from helpers.parity.repairs import trainer_class

# No accelerator but a pretended one, nothing to download, nothing on the screen. Pinned memory
# would only warn.
DEFAULTS: dict[str, Any] = {
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": not trains_on_device(),
    "dataloader_pin_memory": False,
}
DEFAULTS |= {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 2,
}
DEFAULTS |= {"learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no"}


@dataclass(frozen=True)
class Case:
    """One training, described without saying which library runs it.

    `model` makes a fresh model, `data` makes the datasets and the collator (keywords of `Trainer`),
    `arguments` are keywords of `TrainingArguments` over `DEFAULTS`, `extras` makes further keywords
    of `Trainer` from a library's names, `subclass` derives from a library's `Trainer`, `test` makes
    the dataset for `predict`.
    """

    model: Callable[[], nn.Module]
    data: Callable[[], dict[str, Any]]
    arguments: dict[str, Any] = field(default_factory=dict)
    extras: Callable[[ModuleType], dict[str, Any]] = lambda api: {}
    subclass: Callable[[type], type] = lambda base: base
    test: Callable[[], Any] | None = None
    model_seed: int = 7

    def but(self, **changes: Any) -> "Case":
        """The same case with other arguments (`arguments` are merged) or other parts."""
        arguments = {**self.arguments, **changes.pop("arguments", {})}
        return replace(self, arguments=arguments, **changes)


@dataclass
class Run:
    """Results of a training, all compared bit for bit; weights are on the CPU, where those of
    files are.
    """

    history: list[dict[str, Any]]
    state: dict[str, Any]
    output: dict[str, Any]
    weights: dict[str, torch.Tensor]
    random_state: dict[str, Any]
    predictions: Any = None
    label_ids: Any = None
    test_metrics: dict[str, Any] | None = None
    trainer: Any = None
    folder: Path | None = None

    def compared(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("trainer", "folder")}


def build(api: ModuleType, case: Case, folder: Path) -> Any:
    """A trainer of the library `api`, whose model has the weights of the case's seed."""
    torch.manual_seed(case.model_seed)
    model = case.model()
    arguments = api.TrainingArguments(output_dir=str(folder), **{**DEFAULTS, **case.arguments})
    keywords = {**case.data(), **case.extras(api)}
    return case.subclass(trainer_class(api))(model=model, args=arguments, **keywords)


def run(api: ModuleType, case: Case, folder: Path, resume: str | bool | None = None) -> Run:
    """Train, then predict if the case has a test set, and collect the results."""
    trainer = build(api, case, folder)
    output = trainer.train(resume_from_checkpoint=resume)
    result = collect(trainer, output)
    result.folder = folder
    if case.test is not None:
        prediction = trainer.predict(case.test())
        result.predictions, result.label_ids = prediction.predictions, prediction.label_ids
        result.test_metrics = without_clock(prediction.metrics)
    return result


def collect(trainer: Any, output: Any) -> Run:
    """The results of a finished training."""
    names = (
        "global_step",
        "epoch",
        "max_steps",
        "num_train_epochs",
        "total_flos",
        "best_metric",
        "best_global_step",
    )
    names += (
        "num_input_tokens_seen",
        "logging_steps",
        "eval_steps",
        "save_steps",
        "train_batch_size",
    )
    state = {name: getattr(trainer.state, name) for name in names}
    best = trainer.state.best_model_checkpoint
    state["best_model_checkpoint"] = Path(best).name if best else None
    metrics = without_clock(output.metrics)
    # With the progress bar off, the reference's printing callback takes `total_flos` out of the
    # very dictionary that `train` returns. That is an accident, not a result; the number itself is
    # compared in the history.
    metrics.pop("total_flos", None)
    return Run(
        history=[without_clock(entry) for entry in trainer.state.log_history],
        state=state,
        output={
            "global_step": output.global_step,
            "training_loss": output.training_loss,
            "metrics": metrics,
        },
        weights={
            name: tensor.detach().cpu().clone()
            for name, tensor in trainer.model.state_dict().items()
        },
        random_state=random_state(),
        trainer=trainer,
    )


def random_state() -> dict[str, Any]:
    """States of the global generators, which show any draw too many or too few."""
    _, numpy_keys, numpy_position, *_ = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": (numpy_keys.copy(), numpy_position),
        "python": random.getstate(),
    }


def assert_same(expected: Run, actual: Run, ignoring: tuple[str, ...] = ()) -> None:
    """Fail with every difference (reference on the left, lightrainer on the right)."""
    left, right = expected.compared(), actual.compared()
    messages = [
        line
        for key in left
        if key not in ignoring
        for line in differences(left[key], right[key], key)
    ]
    assert not messages, "{} differences, reference != lightrainer:\n{}".format(
        len(messages), "\n".join(messages[:25])
    )


def assert_parity(
    reference: ModuleType, ours: ModuleType, case: Case, folder: Path
) -> tuple[Run, Run]:
    """Run the case with both libraries in this process and demand the same bits."""
    expected = run(reference, case, folder / "reference")
    actual = run(ours, case, folder / "ours")
    assert expected.history, "the reference logged nothing: the case compares nothing"
    assert_same(expected, actual)
    return expected, actual


def checkpoint_state(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's `trainer_state.json`, without clocks and without the path of
    the run.
    """
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"] = [without_clock(entry) for entry in state["log_history"]]
    if state.get("best_model_checkpoint"):
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"]).name
    return state
