"""The objective of a sweep whose command line names none: what the script itself calls best."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from .plan import SweepPlan
from .script import start


def settle(plan: SweepPlan) -> SweepPlan:
    """Return the plan with metrics and directions, and say which and why."""
    if plan.metrics:
        return plan
    said = _ask(plan)
    directions = plan.directions or ["maximize" if said["greater_is_better"] else "minimize"]
    settled = dataclasses.replace(plan, metrics=[said["metric"]], directions=directions)
    print(f"Objective: {settled.goal}. {said['why']}", file=sys.stderr)
    return settled


def _ask(plan: SweepPlan) -> dict[str, Any]:
    """Run the script until it says what it calls best."""
    from ...facade.arguments.sweep_trial import ChildTrial
    from .space import suggest

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "wb") as nowhere:
        result = Path(folder) / "objective.json"
        about = ChildTrial(
            storage="",
            study="",
            number=0,
            metrics=[],
            result=str(result),
            run_name="run",
            parent=os.getpid(),
            asks=True,
        )
        process = start(plan, suggest(plan.space), about, nowhere)
        try:
            process.wait()
        finally:
            process.terminate()
        if result.exists():
            return json.loads(result.read_text())
        why = f"The script made no TrainingArguments, and ended with exit code {process.returncode}."
        return {"metric": "eval_loss", "greater_is_better": False, "why": why}
