"""Everything that a GPU has to show, in stages of less than eight minutes:
`python -m benchmarks gpu`.

Needs torch and this package; with transformers its Trainer is compared, too. Each case runs in a
process of its own and is written to `build/gpu/results.json` when it ends, so that an interrupted
run goes on with the next case.
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from .cases import Setting, commit, probe, run_case
from .page import publish
from .results import Results

STAGES = {
    "tests": "tests that are marked `gpu`",
    "parity": "losses and weights against a bare loop and the reference",
    "throughput": "tokens a second, memory and host synchronisations of a GPT-2",
    "checkpoints": "standstill for a checkpoint; resumption bit for bit",
    "compare": "`lightrainer compare` of the examples",
    "trace": "what the device does in a step",
}
RESULTS = Path("build") / "gpu" / "results.json"


def main(arguments: Sequence[str]) -> int:
    """Run stages; returns 1 if a case failed, 3 if some are left for the next call."""
    options = _parser().parse_args(arguments)
    if options.publish:
        publish(options.results)
        return 0
    setting = Setting(options.device)
    machine = probe(setting)
    if setting.device == "cuda" and not machine["gpu"]:
        print("there is no GPU here; `--device cpu` rehearses the stages with small models")
        return 2
    results = Results.open(options.results, machine, commit())
    left = [
        name
        for name in options.stages or STAGES
        if not _run(name, setting, results, options.minutes * 60)
    ]
    print(results.summary())
    if left:
        print(f"not finished: {', '.join(left)}; the same command goes on")
        return 3
    return 1 if results.failed else 0


def _run(name: str, setting: Setting, results: Results, seconds: float) -> bool:
    """Run the cases of a stage that have no result yet; returns whether time was enough for all
    of them.
    """
    cases = importlib.import_module(f"benchmarks.gpu.{name}").cases(setting)
    print(f"== {name}: {STAGES[name]}", flush=True)
    for case in cases:
        if (name, case) in results:
            continue
        if seconds <= 0:
            return False
        row = run_case(name, case, setting, seconds)
        seconds -= row["seconds"]
        results.add(row)
        print(f"  {row['outcome']:7} {case}: {row['note'] or row['figures']}", flush=True)
    return True


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:12} {what}" for name, what in STAGES.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks gpu",
        description=__doc__,
        epilog=f"stages:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "stages", nargs="*", choices=[*STAGES, []], metavar="STAGE", help="all, if none is named"
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses with small models"
    )
    parser.add_argument("--minutes", type=float, default=8, help="for each stage (%(default)g)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="file of results (%(default)s)"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write docs/develop/gpu.md and the README's row of them",
    )
    return parser
