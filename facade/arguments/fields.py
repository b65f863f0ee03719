"""All fields of the training arguments, put together in the documented order."""

from dataclasses import dataclass

from .data import DataArguments, LaterDataArguments
from .distributed import DistributedArguments, LaterDistributedArguments
from .evaluation import EvaluationArguments
from .execution import ExecutionArguments, LaterExecutionArguments
from .hub import HubArguments
from .optimization import OptimizationArguments
from .platform import PlatformArguments, SeedArguments
from .precision import PrecisionArguments
from .reporting import LaterReportingArguments, ReportingArguments
from .run import RunArguments
from .saving import CheckpointUseArguments, SavingArguments
from .script import DeprecatedArguments, DiagnosticsArguments, ScriptArguments


# Dataclasses gather fields from the last base to the first, so read this list from its end. What later versions added
# comes last, so that the documented order of 5.3.0 stays as it is.
@dataclass(init=False, repr=False, eq=False)
class ArgumentFields(
    LaterDistributedArguments,
    LaterDataArguments,
    LaterReportingArguments,
    LaterExecutionArguments,
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
