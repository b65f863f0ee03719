"""Starts scripts in several processes as torchrun does, but forked from this one, which has imported everything.

    forking_ranks.py MODULE ...

imports these modules, and then reads what to start from its input: JSON with `script`, `words`, `processes`,
`environment`, `log` and `seconds`, a line each; no processes are one, as if Python had been started with the script.
The exit codes are its answer.
"""

import gc
import importlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from forking import forked


def execute(script: str, words: list[str], environment: dict[str, str]) -> None:
    """What Python does with a script, in a process whose place among the others is in its environment already."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = script
    sys.argv, sys.path[0] = [script, *words], str(Path(script).parent)
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        os.environ.clear()
        action = partial(execute, asked["script"], asked["words"], asked["environment"])
        log, seconds = Path(asked["log"]), asked["seconds"]
        try:
            count = asked["processes"]
            told: Any = forked(action, count or 1, log=log, seconds=seconds, as_a_script=True, place=count > 0).codes
        except TimeoutError as error:
            told = str(error)
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
