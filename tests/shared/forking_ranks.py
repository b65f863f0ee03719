"""Starts scripts in several processes as torchrun does, but forked from this one, which has imported everything.

    forking_ranks.py MODULE ...

imports these modules, and then reads what to start from its input: JSON with `script`, `words`, `processes`,
`environment`, `log`, `seconds` and `torchrun`, a line each; no processes are one, as if Python had been started with
the script. `torchrun` are options of a launcher that is to look after the processes, or null where there is none. The
exit codes are its answer.
"""

import atexit
import gc
import importlib
import json
import os
import signal
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
    sys.argv, sys.path[:1] = [script, *words], [str(Path(script).parent), *environment.get("PYTHONPATH", "").split(":")]
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


def launch(options: list[str], script: str, words: list[str], environment: dict[str, str]) -> None:
    """What torchrun does, with its own code; but its workers are forked too, again and again after a fault."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.launcher.api import elastic_launch

    os.environ.update(environment)
    arguments = run.get_args_parser().parse_args(["--start-method=fork", *options, script, *words])
    record(elastic_launch(run.config_from_args(arguments)[0], work))(script, words)


def work(script: str, words: list[str]) -> None:
    """What a worker does, which ends as Python does: with its exit handlers, a traceback, and a code or signal."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # the launcher's own
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: object = 0
    try:
        execute(script, words, {})
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if code:
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        os.environ.clear()
        known = (asked["script"], asked["words"], asked["environment"])
        launched, count = asked["torchrun"] is not None, asked["processes"]
        action, count = (
            (partial(launch, asked["torchrun"], *known), 0) if launched else (partial(execute, *known), count)
        )
        log, seconds = Path(asked["log"]), asked["seconds"]
        try:
            told: Any = forked(action, count or 1, log=log, seconds=seconds, as_a_script=True, place=count > 0).codes
        except TimeoutError as error:
            told = str(error)
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
