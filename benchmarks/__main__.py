"""Runs the benchmarks: `python -m benchmarks` all, `python -m benchmarks NAME ...` some, `--list`
names them.

`python -m benchmarks gpu` runs the stages for a GPU; see `python -m benchmarks gpu --help`.
"""

import importlib
import sys

from . import summary
from .common import Figure

NAMES = {
    "step_overhead": "time of one training step beyond that of a bare loop, against the reference",
    "many_modules": "the same for a model of 450 modules, of which each walk takes a millisecond",
    "two_processes": (
        "the same in two processes, beyond a bare DistributedDataParallel loop, against the "
        "reference"
    ),
    "many_processes": (
        "collectives of 2 to 1,024 processes, counted; their time for 2, 4 and 8, against the "
        "reference"
    ),
    "gpt_steps": "time of a step of a GPT of 6 million parameters, against a bare loop",
    "packing": (
        "tokens a second on documents of skewed lengths: padded, batches of a number of tokens, "
        "packed"
    ),
    "start": (
        "processor time of a process up to its first step, also under the runner, against the "
        "reference"
    ),
    "scripts": "each of `examples/scripts/` as a whole, plain Python against the runner",
    "long_data": "first step and memory of the order of 20 million samples, against the reference",
    "memory": "the most memory that steps and a resumption of a GPT take, against the reference",
    "long_run": (
        "50,000 steps with a log each: what grows, and whether they stay as quick as they were"
    ),
    "many_logs": (
        "20,000 steps with a log each, and trainer_state.json of 20,000 logs, against the reference"
    ),
    "callback_cost": (
        "time of a step that one callback more takes which does nothing, against the reference"
    ),
    "keras_steps": (
        "time of a step of a Keras model on torch and over the bridge, against Keras on TensorFlow"
    ),
    "host_sync": "how often the host waits for a number from the device between two logs",
    "checkpoint": (
        "standstill and processor time of checkpoints, the last one too, against the reference"
    ),
    "save_stall": (
        "standstill for checkpoints of 0.2 to 240 MB, rare and frequent ones, against the reference"
    ),
    "search": (
        "time of a trial beyond its training, against the reference; two workers against one"
    ),
    "evaluation": (
        "time and memory of an evaluation with large predictions, and the overhead of a small one"
    ),
}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["gpu"]:
        return importlib.import_module("benchmarks.gpu").main(arguments[1:])
    if "--list" in arguments or "-h" in arguments or "--help" in arguments:
        print(__doc__)
        for name, description in NAMES.items():
            print(f"  {name:14} {description}")
        return 0
    unknown = [name for name in arguments if name not in NAMES]
    if unknown:
        print(
            f"no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}",
            file=sys.stderr,
        )
        return 2
    figures: dict[str, list[Figure]] = {}
    for name in arguments or NAMES:
        print(f"== {name}: {NAMES[name]}")
        figures[name] = importlib.import_module(f"benchmarks.{name}").main()
        print()
    print(summary.write(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
