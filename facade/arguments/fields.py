"""All fields of the training arguments, put together in the documented order."""

from dataclasses import dataclass

from .data import DataArguments
from .distributed import DistributedArguments
from .evaluation import EvaluationArguments
from .execution import ExecutionArguments
from .hub import HubArguments
from .optimization import OptimizationArguments
from .platform import PlatformArguments, SeedArguments
from .precision import PrecisionArguments
from .reporting import ReportingArguments
from .run import RunArguments
from .saving import CheckpointUseArguments, SavingArguments
from .script import DeprecatedArguments, DiagnosticsArguments, ScriptArguments


# Dataclasses gather fields from the last base to the first, so read this list from its end.
@dataclass(init=False, repr=False, eq=False)
class ArgumentFields(
    DeprecatedArguments,
    ScriptArguments,
    DiagnosticsArguments,
    DistributedArguments,
    DataArguments,
    PlatformArguments,
    SeedArguments,
    CheckpointUseArguments,
    HubArguments,
    SavingArguments,
    EvaluationArguments,
    ReportingArguments,
    ExecutionArguments,
    PrecisionArguments,
    OptimizationArguments,
    RunArguments,
):
    """The fields of `transformers.TrainingArguments`, and nothing but fields: names, order, types and defaults."""
