"""Arguments as four processes see them, without starting any."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from helpers.trainer.tiny_trainings import arguments
from lightrainer import TrainingArguments
from lightrainer.facade.distributed.process import ProcessEnvironment


@dataclasses.dataclass(repr=False)
class OfFour(TrainingArguments):
    """As two processes on each of two machines see it, without starting them."""

    @property
    def distributed_state(self) -> ProcessEnvironment:
        return ProcessEnvironment(
            rank=0, local_rank=0, world_size=4, local_world_size=2, device=torch.device("cpu")
        )


def of_four(folder: Path, **changes: Any) -> OfFour:
    """The arguments of a tiny training, of four processes."""
    args = arguments(folder, **changes)
    return OfFour(
        **{item.name: getattr(args, item.name) for item in dataclasses.fields(args) if item.init}
    )
