"""A user's script, for type checkers: `make lint` runs pyright over it. Lines that must be mistakes
are marked with `ignore`.

An unnecessary `ignore` is an error (`reportUnnecessaryTypeIgnoreComment`).
"""

# pyright: reportMissingModuleSource=false
from typing import assert_type

from torch import nn

from lightrainer import (
    BestRun,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    TrainOutput,
)


class Telling(TrainerCallback):
    """Prints the step."""

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ):
        """Print it."""
        print(state.global_step)


class PlainPython(TrainerCallback):
    """Overrides an event without types, as most scripts do: they are those of the base class."""

    def on_step_end(self, args, state, control, **kwargs):
        """Check them."""
        assert_type(args, TrainingArguments)
        assert_type(state, TrainerState)
        assert_type(control, TrainerControl)
        print(args.leaning_rate)  # pyright: ignore[reportAttributeAccessIssue] - a slip to be found

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Name one more value of the event."""


args = TrainingArguments("out", learning_rate=1e-4, eval_strategy="steps")
trainer = Trainer(model=nn.Linear(2, 2), args=args, callbacks=[EarlyStoppingCallback(2), Telling()])

assert_type(trainer.train(), TrainOutput)
assert_type(trainer.train().training_loss, float)
assert_type(trainer.evaluate(), dict[str, float])
assert_type(trainer.state.global_step, int)
assert_type(trainer.hyperparameter_search(n_trials=3), BestRun | list[BestRun])

trainer.trian()  # pyright: ignore[reportAttributeAccessIssue] - a slip to be found
trainer.evaluate(dataset=[])  # pyright: ignore[reportCallIssue] - as here
TrainingArguments("out", learning_rat=1e-4)  # pyright: ignore[reportCallIssue] - and here
