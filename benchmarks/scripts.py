"""Each of `examples/scripts/` as a whole, unchanged: plain Python with the reference against
`python -m lightrainer`.

With models of transformers, three epochs, evaluations, checkpoints. Each is run both ways in turns;
the smaller of the times counts, as what else runs on the machine only adds to it.
"""

from functools import partial
from pathlib import Path
from typing import Any

from .common import Figure, interleaved, report
from .processes import Spent, spent_by

ROUNDS = 2
SCRIPTS = Path(__file__).parents[1] / "examples" / "scripts"
OPTIONS = (
    "--output_dir out --do_train --do_eval --eval_strategy epoch --save_strategy epoch "
    "--logging_steps 1"
)
OPTIONS += " --report_to none --use_cpu"
FURTHER = {"image_classification": ["--remove_unused_columns", "False"]}
WAYS = {"transformers": [], "the runner": ["-m", "lightrainer"]}


def shortest(values: list[Spent]) -> Spent:
    return Spent(min(each.processor for each in values), min(each.wall for each in values))


def main() -> list[Figure]:
    rows: list[tuple[str, str]] = []
    results: dict[str, Any] = {}
    figures: list[Figure] = []
    for script in sorted(SCRIPTS.glob("*.py")):
        words = [script, *OPTIONS.split(), *FURTHER.get(script.stem, [])]
        candidates = {way: partial(spent_by, [*begin, *words]) for way, begin in WAYS.items()}
        if not results:
            interleaved(1, candidates)  # compiles the modules that all of them share
        least = {way: shortest(values) for way, values in interleaved(ROUNDS, candidates).items()}
        seconds = {way: vars(spent) for way, spent in least.items()}
        ours, theirs = least["the runner"], least["transformers"]
        results[script.stem] = seconds
        times = (
            f"{theirs.wall:.1f} s, {ours.wall:.1f} s; processor "
            f"{ours.processor / theirs.processor:.2f}"
        )
        rows.append((script.stem, times))
        figures.append(
            Figure(f"whole script {script.stem}, wall time", ours.wall / theirs.wall, 1.0)
        )
    return report("scripts", rows, {"seconds": results}, figures)


if __name__ == "__main__":
    main()
