"""What a strategy of Lightning is before it is built: a name, and options that a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arguments.parallelism import groups_of
from .strategy import Strategy, StrategyHost

if TYPE_CHECKING:
    from torch import nn

    from ..arguments import TrainingArguments

Row = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class StrategyPlan:
    """Which Lightning strategy, with which options; one subclass for each that needs more than to be named."""

    name: str
    """The class in Lightning, such as `DDPStrategy`."""
    options: dict[str, Any]
    """Plain values: what the strategy is built with, and what is done to the model for it."""

    @property
    def shards_weights(self) -> bool:
        """Whether a process holds only a part of the weights, so that all must run each forward pass together."""
        return False

    @property
    def saves_parts(self) -> bool:
        """Whether each process writes its part of a checkpoint."""
        return False

    @property
    def distributes(self) -> bool:
        """Whether the model is spread over the processes when Lightning configures it."""
        return False

    @property
    def replaces_parameters(self) -> bool:
        """Whether an optimizer that was made before would hold parameters that are not used any more."""
        return self.distributes

    @property
    def accelerator(self) -> str | None:
        """Lightning's accelerator, where the strategy works on no other; None where it follows the device."""
        return None

    def build_accelerator(self) -> Any:
        """Make an accelerator as an object, where Lightning's own does not do; None where its name will do."""
        return None

    def check(self, args: TrainingArguments, model: nn.Module) -> None:
        """Look whether a run can begin: nothing has been written by then.

        Raises:
            ValueError: the processes or the model are not those that the strategy needs.
            ImportError: a package is missing.
            NotImplementedError: the strategy can be planned, but not run.
        """
        check_processes(args)

    def for_trainer(self, host: StrategyHost) -> Strategy:
        """Return the strategy at work on the model of a Trainer."""
        return Strategy(self, host)

    def precision(self, name: str, device: str) -> Any:
        """Make the precision plugin that the strategy insists on; None where any will do.

        Args:
            name: Lightning's name of the precision.
            device: type of the device, such as `cuda`.
        """
        return None

    def build(self) -> Any:
        """Make the strategy as Lightning takes it; `auto` where Lightning needs no telling.

        Raises:
            ImportError: it needs a package that is not there; says how to install it.
        """
        return "auto"

    def groups(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Return (arguments, their name in Lightning, options) of what belongs together; one row each."""
        return [("ddp_*", "Trainer(strategy=)", self.options)]

    def rows(self) -> list[Row]:
        """Return (arguments, their name in Lightning, value) for the table of the plan."""
        first, *others = ((arguments, becomes, shown(options)) for arguments, becomes, options in self.groups())
        return [(first[0], first[1], f"{self.name}({first[2]})"), *(row for row in others if row[2])]


OWN_LOOP = Strategy(StrategyPlan(name="", options={}), None)
"""For loops of one's own, before there was a run."""


def shown(value: Any) -> str:
    """Write options as text: `name=value, ...` for a dict, and so on inside of it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_inner(item)}" for name, item in value.items())
    return _inner(value)


def _inner(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{shown(value)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_inner, value))}]"
    return str(value)


def process_group(args: TrainingArguments) -> dict[str, Any]:
    """Return the options about the process group, which all strategies of several processes have."""
    backend = {} if args.ddp_backend is None else {"process_group_backend": args.ddp_backend}
    return {**backend, "timeout": args.ddp_timeout_delta}


def check_processes(args: TrainingArguments) -> None:
    """Look whether there are as many processes as `parallelism_config` is made for.

    Raises:
        ValueError: there are not; says how to start them.
    """
    groups = groups_of(args)
    if groups is not None and groups.total_size not in (1, args.world_size):
        raise ValueError(
            f"parallelism_config is made for {groups.total_size} processes, but the number of processes is "
            f"{args.world_size}: start the script with torchrun --nproc_per_node={groups.total_size}, or change it."
        )


def picked(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Pick those of the options that are there, in the order of `names`."""
    return {name: options[name] for name in names if name in options}
