"""Effects of arguments, to be tried by two runs that differ in one argument only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.trainer.tiny_trainings import ARGUMENTS, points, tiny
from lightrainer import Seq2SeqTrainingArguments, Trainer, TrainingArguments
from lightrainer.facade.distributed.process import ProcessEnvironment


@dataclass
class Place:
    """Where a run takes place: its own folder, and pytest's tool to change the environment while
    it lasts.
    """

    folder: Path
    patch: pytest.MonkeyPatch


Observation = Callable[[dict[str, Any], Place], Any]
"""Takes training arguments, does something with them, and returns what can be seen of it."""


@dataclass(frozen=True)
class Effect:
    """A value away from the default, where to look, and what is to be seen there.

    `shows(usual, changed)` compares what is seen with the default and with the value; it must be
    False for the default twice. `beside` are further arguments of both runs.
    """

    value: Any
    observe: Observation
    shows: Callable[[Any, Any], bool]
    beside: dict[str, Any] = field(default_factory=dict)


def becomes(usual: Any, changed: Any) -> Callable[[Any, Any], bool]:
    """Exactly this is seen with the default, and that with the value."""
    assert usual != changed
    return lambda seen, other: (seen, other) == (usual, changed)


def differ(seen: Any, other: Any) -> bool:
    """Something else is seen."""
    return seen != other


def of_arguments(
    look: Callable[[Any], Any], kind: type[TrainingArguments] = Seq2SeqTrainingArguments
) -> Observation:
    """Look at the arguments themselves."""
    return lambda given, place: look(kind(**{"output_dir": str(place.folder), **given}))


def built(
    look: Callable[[Any], Any], kind: type[TrainingArguments] = TrainingArguments, **parts: Any
) -> Observation:
    """Look at a Trainer that has not run; `parts` are functions that make its parameters."""

    def observe(given: dict[str, Any], place: Place) -> Any:
        return look(make(given, place, kind, **parts))

    return observe


def trained(look: Callable[[Any], Any], **parts: Any) -> Observation:
    """Look at a Trainer that has trained."""

    def observe(given: dict[str, Any], place: Place) -> Any:
        trainer = make(given, place, **parts)
        trainer.train()
        return look(trainer)

    return observe


def make(
    given: dict[str, Any],
    place: Place,
    kind: type[TrainingArguments] = TrainingArguments,
    **parts: Any,
) -> Any:
    """A Trainer of `tiny()` on 16 points."""
    torch.manual_seed(5)
    cls = parts.pop("trainer", lambda: Trainer)()
    factories = {
        "model": tiny,
        "train_dataset": points,
        "eval_dataset": lambda: points(6, seed=2),
        **parts,
    }
    args = kind(**{"output_dir": str(place.folder), **given})
    return cls(args=args, **{name: part() for name, part in factories.items()})


def surroundings(name: str, beside: dict[str, Any]) -> dict[str, Any]:
    """The arguments of both runs: quick and quiet, but for the one that is looked at."""
    return {**{key: value for key, value in ARGUMENTS.items() if key != name}, **beside}


def logged(key: str) -> Callable[[Any], list[Any]]:
    """All that was logged under a name, in order."""
    return lambda trainer: [entry[key] for entry in trainer.state.log_history if key in entry]


def steps_with(key: str) -> Callable[[Any], list[int]]:
    """The steps at which something was logged under a name."""
    return lambda trainer: [entry["step"] for entry in trainer.state.log_history if key in entry]


def steps(trainer: Any) -> int:
    return trainer.state.global_step


def weights(trainer: Any) -> list[Any]:
    return [tensor.tolist() for tensor in trainer.model.state_dict().values()]


def checkpoints(trainer: Any) -> list[str]:
    return sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))


def one_of_four(rank: int, local_rank: int) -> type[TrainingArguments]:
    """Arguments as a process of four sees them, two on each of two machines; the others are not
    started.
    """

    class OneOfFour(Seq2SeqTrainingArguments):
        @property
        def distributed_state(self) -> ProcessEnvironment:
            return ProcessEnvironment(
                rank, local_rank, world_size=4, local_world_size=2, device=torch.device("cpu")
            )

    return OneOfFour


class OnCuda(TrainingArguments):
    """Arguments as on a GPU; nothing is put on it."""

    place_model_on_device = False

    @property
    def distributed_state(self) -> ProcessEnvironment:
        return ProcessEnvironment(
            0, 0, world_size=1, local_world_size=1, device=torch.device("cuda", 0)
        )
