"""Record the events of a training with step, epoch, model mode and flags, one per line.

`SITUATIONS` are trainings, and `sequence` runs one of them with either library;
`tests/parity/event_sequences.txt` holds what comes of each.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.parity.harness import Case, build
from helpers.parity.parity_datasets import Stream, point_data, points
from helpers.parity.parity_models import Classifier

EVENTS = [
    *(
        "on_init_end",
        "on_train_begin",
        "on_train_end",
        "on_epoch_begin",
        "on_epoch_end",
        "on_step_begin",
    ),
    *(
        "on_pre_optimizer_step",
        "on_optimizer_step",
        "on_substep_end",
        "on_step_end",
        "on_evaluate",
        "on_predict",
    ),
    *("on_save", "on_log", "on_prediction_step"),
]
FLAGS = {"should_training_stop": "T", "should_epoch_stop": "E"}
FLAGS |= {"should_save": "S", "should_evaluate": "V", "should_log": "L"}


def flags(control) -> str:
    return "".join(letter if getattr(control, name) else "-" for name, letter in FLAGS.items())


def mode(model) -> str:
    """`t` if all parts of the model are in training mode, `e` if none is, `m` if they differ."""
    parts = {part.training for part in model.modules()}
    return "m" if len(parts) > 1 else "t" if parts == {True} else "e"


class Listening:
    """Notes every event that passes through the handlers of a library, of all its trainers, while
    it is entered.

    And every call of `log`, which overrides tell training from evaluation in by the mode of the
    model.
    """

    def __init__(self, api):
        self.handler = (
            api.trainer_callback.CallbackHandler
            if api.__name__ == "transformers"
            else api.CallbackHandler
        )
        self.trainer = api.Trainer
        self.lines: list[str] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator[list[str]]:
        with pytest.MonkeyPatch.context() as patch:
            for event in EVENTS:
                patch.setattr(self.handler, event, self.noting(event, getattr(self.handler, event)))
            patch.setattr(self.trainer, "log", self.noting_logs(self.trainer.log))
            yield self.lines

    def noting_logs(self, original):
        def log(trainer, logs, *rest, **keywords):
            self.lines.append(f"{'log':22} {trainer.state.global_step:2} {mode(trainer.model)}")
            original(trainer, logs, *rest, **keywords)

        return log

    def noting(self, event, original):
        def method(handler, args, state, control, *rest, **keywords):
            before = flags(control)
            place = f"{event:22} {state.global_step:2} {state.epoch or 0:.4f} {mode(handler.model)}"
            names = ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
            initials = "".join(name[0] for name in names if getattr(handler, name) is not None)
            keys = ",".join(
                sorted(key for value in rest for key in value if isinstance(value, dict))
            )
            entries = len(state.log_history)
            control = original(handler, args, state, control, *rest, **keywords)
            self.lines.append(
                f"{place} {before} {flags(control)} {initials:5} {entries:2} {keys}".rstrip()
            )
            return control

        return method


@dataclasses.dataclass(frozen=True)
class Situation:
    """A training; `then` is what a script does after it, `resume` the step from which it is run
    once more.
    """

    arguments: dict = dataclasses.field(default_factory=dict)
    callbacks: object = lambda api: []
    data: object = point_data
    resume: int | None = None
    before: object = lambda trainer: None
    then: object = lambda trainer: None


def early_stopping(api):
    return [api.EarlyStoppingCallback(early_stopping_patience=2)]


def evaluate_and_predict(trainer):
    trainer.evaluate()
    trainer.predict(points(7, seed=21))


def evaluating_in_events(api):
    """Asks its trainer for an evaluation, as scripts do, at the end of a step and of an epoch."""

    class Asking(api.TrainerCallback):
        trainer = None

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                self.trainer.evaluate()

        def on_epoch_end(self, args, state, control, **kwargs):
            self.trainer.predict(points(5, seed=4))

    return [Asking()]


def evaluating_in(*events):
    """Makes a callback that asks its trainer for an evaluation in each of these events."""

    def callbacks(api):
        def hook(self, args, state, control, **kwargs):
            self.trainer.evaluate()

        return [
            type(
                "Asking", (api.TrainerCallback,), {"trainer": None, **dict.fromkeys(events, hook)}
            )()
        ]

    return callbacks


def half_in_eval_mode(trainer):
    """Models that were evaluated before, or of which a part is frozen."""
    trainer.model.dropout.eval()


def introduce(trainer):
    for callback in trainer.callback_handler.callbacks:
        if hasattr(callback, "trainer"):
            callback.trainer = trainer


BY_STEPS = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2}
BY_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
WORSENING = {**BY_STEPS, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
WORSENING |= {"greater_is_better": False, "num_train_epochs": 6, "learning_rate": 0.3}
SITUATIONS = {
    "bare": Situation(),
    "accumulation": Situation({"gradient_accumulation_steps": 2}),
    "accumulation with a remainder": Situation(
        {"gradient_accumulation_steps": 4, "logging_first_step": True}
    ),
    "evaluation by steps, late": Situation(
        {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3}
    ),
    "evaluation and saving by steps": Situation(
        {
            **BY_STEPS,
            "save_steps": 4,
            "gradient_accumulation_steps": 2,
            "logging_steps": 3,
            "eval_on_start": True,
        }
    ),
    "everything by epoch": Situation(BY_EPOCH),
    "nothing logged": Situation({"logging_strategy": "no", "save_strategy": "no"}),
    "intervals as shares": Situation(
        {**BY_STEPS, "logging_steps": 0.2, "eval_steps": 0.3, "save_steps": 0.3}
    ),
    "max_steps in mid-epoch": Situation(
        {"max_steps": 4, "save_strategy": "steps", "save_steps": 3}
    ),
    "max_steps over two epochs": Situation({"max_steps": 8, **BY_EPOCH}),
    "a fraction of an epoch": Situation({"num_train_epochs": 1.5, "logging_steps": 2}),
    "a stream": Situation(
        {"max_steps": 5, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"},
        data=lambda: {"train_dataset": Stream(points(22)), "eval_dataset": points(5)},
    ),
    "two evaluation sets": Situation(
        {"eval_strategy": "epoch", "num_train_epochs": 1},
        data=lambda: {**point_data(), "eval_dataset": {"one": points(5), "two": points(9)}},
    ),
    "the best is saved": Situation({**WORSENING, "save_strategy": "best", "num_train_epochs": 1}),
    "early stopping": Situation(WORSENING, early_stopping),
    "resumed in mid-epoch": Situation({**BY_STEPS, "logging_steps": 3}, resume=4),
    "resumed in mid-epoch with accumulation": Situation(
        {**BY_STEPS, "gradient_accumulation_steps": 2}, resume=2
    ),
    "resumed after an epoch": Situation(BY_EPOCH, resume=6),
    "resumed at the end": Situation(BY_EPOCH, resume=12),
    "early stopping, resumed": Situation(WORSENING, early_stopping, resume=4),
    "evaluate and predict": Situation(
        {"num_train_epochs": 1}, before=evaluate_and_predict, then=evaluate_and_predict
    ),
    "evaluate and predict by a callback": Situation(
        {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 3},
        evaluating_in_events,
        before=introduce,
    ),
    "evaluated in the midst of steps": Situation(
        {"num_train_epochs": 1, "gradient_accumulation_steps": 2},
        evaluating_in(
            "on_train_begin",
            "on_epoch_begin",
            "on_step_begin",
            "on_substep_end",
            "on_optimizer_step",
        ),
        before=introduce,
    ),
    "evaluated at the end": Situation(
        {"num_train_epochs": 1},
        evaluating_in("on_epoch_end", "on_train_end"),
        before=introduce,
        then=lambda trainer: trainer.train(),
    ),
    "evaluated in between, by epoch": Situation(
        {
            **BY_EPOCH,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
            "eval_on_start": True,
        },
        resume=6,
    ),
    "half in evaluation mode": Situation(
        {"eval_strategy": "epoch", "eval_on_start": True}, before=half_in_eval_mode
    ),
    "a model in evaluation mode": Situation(
        {"num_train_epochs": 1}, before=lambda trainer: trainer.model.eval()
    ),
    "trained twice": Situation(
        {"num_train_epochs": 1, "logging_steps": 4}, then=lambda trainer: trainer.train()
    ),
}


def sequence(api, situation, folder) -> list[str]:
    """All events of a situation, one a line."""
    extras = lambda api: {"callbacks": situation.callbacks(api)}
    case = Case(Classifier, situation.data, situation.arguments, extras=extras)
    with Listening(api)() as lines:
        trainer = build(api, case, folder)
        situation.before(trainer)
        trainer.train()
        if situation.resume is not None:
            lines.append(f"from step {situation.resume}")
            trainer = build(api, case, folder)
            situation.before(trainer)
            trainer.train(
                resume_from_checkpoint=str(Path(folder) / f"checkpoint-{situation.resume}")
            )
        situation.then(trainer)
    return lines
