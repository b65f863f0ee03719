"""Trainings whose steps are the user's own: plain backward passes, several of them, gradient
caching, `model.module`.

    python user_code_script.py OUTPUT_FOLDER

The processes are forked, so that everything is imported once: two of each library, and one of
lightrainer, whose batch is that of the two together. Each writes what it saw to
`LIBRARY-PROCESSES-rank<rank>.json` there.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import lightrainer
import lightrainer.facade.trainer.lightning_trainer  # not again in each process
import lightrainer.facade.trainer.trainer_module  # nor this
from helpers.processes.forking import forked
from helpers.processes.rank_training import QUIET, timeless

for api in (lightrainer, transformers):
    api.Trainer, api.TrainingArguments  # noqa: B018 - imported when they are first accessed


class Regression(nn.Module):
    """Two layers, and an attribute that user code reads."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 1)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        predictions = self.second(torch.tanh(self.first(x))).squeeze(-1)
        if labels is None:
            return {"found": predictions}
        return {"loss": (predictions - labels).square().mean(), "found": predictions}


def rows() -> list[dict[str, torch.Tensor]]:
    features = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    return [{"x": x, "labels": x.sum()} for x in features]


def loss_of(model: nn.Module, inputs: dict[str, torch.Tensor], parts: int) -> torch.Tensor:
    return model(**inputs)["loss"] / parts


def plain(
    trainer: Any, model: nn.Module, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    """Call the backward pass of torch, as many scripts do."""
    loss = loss_of(model, inputs, parts)
    loss.backward()
    return loss


def by_accelerator(
    trainer: Any, model: nn.Module, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    loss = loss_of(model, inputs, parts)
    trainer.accelerator.backward(loss)
    return loss


def twice(
    trainer: Any, model: nn.Module, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    """Two forward passes, each with its backward pass, as for adversarial examples."""
    whole = torch.zeros(())
    for factor in (0.75, 0.25):
        loss = factor * loss_of(model, inputs, parts)
        loss.backward()
        whole += loss.detach()
    return whole


def without_sync(
    trainer: Any, model: Any, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    """Exchange gradients in the second of two backward passes only."""
    waiting = model.no_sync() if hasattr(model, "no_sync") else trainer.accelerator.no_sync(model)
    with waiting:
        first = 0.75 * loss_of(model, inputs, parts)
        first.backward()
    second = 0.25 * loss_of(model, inputs, parts)
    second.backward()
    return first.detach() + second.detach()


def cached(
    trainer: Any, model: nn.Module, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    """Gradient caching: a loss over all outputs, and a backward pass through the model for each
    small part.
    """
    pieces = inputs["x"].split(1)
    with torch.no_grad():
        outputs = [model(x=piece)["found"] for piece in pieces]
    leaves = [output.detach().requires_grad_() for output in outputs]
    loss = (torch.cat(leaves) - inputs["labels"]).square().mean() / parts
    loss.backward()
    for piece, leaf in zip(pieces, leaves, strict=True):
        (model(x=piece)["found"] * leaf.grad).sum().backward()
    return loss


def by_attribute(
    trainer: Any, model: Any, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    """Read an attribute of the model as scripts for torchrun do."""
    inner = model.module if trainer.args.world_size > 1 else model
    loss = loss_of(model, inputs, parts) * inner.scale / 2
    loss.backward()
    return loss


def around_the_wrapper(
    trainer: Any, model: nn.Module, inputs: dict[str, torch.Tensor], parts: int
) -> torch.Tensor:
    """Call the model itself: DDP exchanges no gradients."""
    loss = loss_of(trainer.model, inputs, parts)
    loss.backward()
    return loss


STEPS = (plain, by_accelerator, twice, without_sync, cached, by_attribute, around_the_wrapper)


def trained(api: Any, folder: Path, step: Any, processes: int, accumulation: int) -> dict[str, Any]:
    class OwnStep(api.Trainer):
        def training_step(
            self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
        ) -> torch.Tensor:
            model.train()
            parts = self.current_gradient_accumulation_steps
            return step(self, model, self._prepare_inputs(inputs), parts).detach()

    options: dict[str, Any] = {
        "max_steps": 3,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
    }
    options |= {
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "ddp_timeout": 60,
    }
    options |= {
        "per_device_train_batch_size": 4 // processes,
        "gradient_accumulation_steps": accumulation,
        **QUIET,
    }
    trainer = OwnStep(
        Regression(), api.TrainingArguments(str(folder), **options), train_dataset=rows()
    )
    if api is transformers:
        # 5.3.0 divides by the accumulation a second time in `accelerator.backward`; later versions
        # do not.
        trainer.accelerator.gradient_accumulation_steps = 1
    trainer.train()
    return {
        "weights": {
            name: weight.flatten().tolist() for name, weight in trainer.model.state_dict().items()
        },
        "history": timeless(trainer.state.log_history),
    }


def handed_over(api: Any, folder: Path) -> dict[str, str]:
    """Return the class of the model that each override, callback and attribute gets."""
    classes: dict[str, str] = {}

    def note(place: str, model: Any) -> None:
        classes[place] = type(model).__name__

    class Watching(api.Trainer):
        def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            note("training_step", model)
            return super().training_step(model, *args, **kwargs)

        def compute_loss(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            mode = "training" if model.training else "evaluation"
            note(f"compute_loss in {mode}, is_in_train {self.is_in_train}", model)
            return super().compute_loss(model, *args, **kwargs)

        def prediction_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            note(f"prediction_step, is_in_train {self.is_in_train}", model)
            return super().prediction_step(model, *args, **kwargs)

        def _maybe_log_save_evaluate(
            self, loss: Any, norm: Any, model: nn.Module, *args: Any, **kwargs: Any
        ) -> None:
            note("_maybe_log_save_evaluate", model)
            super()._maybe_log_save_evaluate(loss, norm, model, *args, **kwargs)

        def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
            note("_save_checkpoint", model)
            super()._save_checkpoint(model, trial)

    class Listening(api.TrainerCallback):
        pass

    def listener(event: str) -> Any:
        def listen(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            note(event, kwargs["model"])
            note(f"trainer.model in {event}", trainer.model)
            note(f"trainer.model_wrapped in {event}", trainer.model_wrapped)

        return listen

    for event in ("on_train_begin", "on_step_end", "on_evaluate", "on_save", "on_train_end"):
        setattr(Listening, event, listener(event))
    options: dict[str, Any] = {
        "max_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        **QUIET,
    }
    arguments = api.TrainingArguments(str(folder / "watched"), ddp_timeout=60, **options)
    trainer = Watching(
        Regression(),
        arguments,
        train_dataset=rows(),
        eval_dataset=rows()[:4],
        callbacks=[Listening()],
    )
    trainer.train()
    trainer.remove_callback(Listening)
    trainer.evaluate()
    return classes


def run(api: Any, folder: Path, processes: int) -> None:
    record: dict[str, Any] = {}
    for step in STEPS:
        for accumulation in (1, 2):
            record[f"{step.__name__} {accumulation}"] = trained(
                api, folder, step, processes, accumulation
            )
    if processes > 1:
        record["handed over"] = handed_over(api, folder)
    rank = os.environ.get("RANK", "0")
    (folder / f"{api.__name__}-{processes}-rank{rank}.json").write_text(json.dumps(record))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for api, processes in ((transformers, 2), (lightrainer, 2), (lightrainer, 1)):
        place = folder / f"{api.__name__}-{processes}.log"
        ended = forked(partial(run, api, folder, processes), processes, log=place)
        if any(ended.codes):
            sys.exit(
                f"{api.__name__} in {processes} processes: {ended.codes}\n{ended.said[-5000:]}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
