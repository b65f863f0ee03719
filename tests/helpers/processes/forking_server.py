"""A process that has imported everything and forks others, which start immediately.

    forking_server.py SOCKET MODULE ...

imports these modules and listens at the socket. The first byte that a caller sends is its
request:

- `u`: use the server. It answers with a byte, exits when the last of these connections closes, and
  then terminates everything it has started;
- `s`: start another server, forked from this one, which imports more. JSON follows, with `address`,
  `modules`, `environment` and `paths`, which Python searches first for modules. The answer is a
  line when it listens;
- `r`: run a script in several processes, as torchrun starts them. A line of JSON follows, with
  `script`, `words`, `processes`, `environment`, `log`, `seconds` and `torchrun`; zero processes
  mean one, as if Python had been started with the script. `torchrun` has the options of a launcher
  that monitors the processes, or is null without a launcher. The answer is the exit codes;
- `p`: do what Python would do with a command line, see `forked_python.py`. The files for its
  standard input, output and error are passed along, then JSON with `words`, `environment`, `cwd`,
  `executable` and optionally `packages`, the package folder of another virtual environment. The
  answer is its process id and, when it has exited, its exit code; it is killed if the caller
  disconnects first.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import sysconfig
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from helpers.processes.forking import SPARE, draw_anew, ending_of, forked, leave

PATIENCE = 60
"""Seconds in which the first user has to come."""


def execute(script: str, words: list[str], environment: dict[str, str]) -> None:
    """Run a script as Python does, in a process whose place among the others is in its
    environment already.
    """
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = script
    sys.argv, sys.path[:1] = (
        [script, *words],
        [
            str(Path(script).parent),
            *environment.get("PYTHONPATH", "").split(":"),
        ],
    )
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


def launch(options: list[str], script: str, words: list[str], environment: dict[str, str]) -> None:
    """Start processes with the code of torchrun; but its workers are forked too, again and again
    after a fault.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.launcher.api import elastic_launch

    os.environ.update(environment)
    arguments = run.get_args_parser().parse_args(["--start-method=fork", *options, script, *words])
    record(elastic_launch(run.config_from_args(arguments)[0], work))(script, words)


def work(script: str, words: list[str]) -> None:
    """Run a worker, which ends as Python does: with its exit handlers, a traceback, and a code
    or signal.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # the launcher's own
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if code := ending_of(partial(execute, script, words, {})):
        leave(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


def start_ranks(caller: socket.socket, asked: dict[str, Any]) -> None:
    """Start processes, wait for them, and answer."""
    os.environ.clear()
    parameters = (asked["script"], asked["words"], asked["environment"])
    count = asked["processes"]
    action, place = partial(execute, *parameters), count > 0
    if asked["torchrun"] is not None:
        action, count, place = partial(launch, asked["torchrun"], *parameters), 1, False
    log, seconds = Path(asked["log"]), asked["seconds"]
    # If this process hangs, the alarm ends it, and writes into the log where it was.
    stacks = log.open("a")
    faulthandler.register(signal.SIGALRM, file=stacks, chain=True)
    signal.alarm(int(seconds) + SPARE)
    try:
        alone = partial(_without, caller, action)
        outcome: Any = forked(
            alone, count or 1, log=log, seconds=seconds, as_a_script=True, place=place
        ).codes
    except TimeoutError as error:
        outcome = str(error)
    caller.sendall(json.dumps(outcome).encode() + b"\n")


def _without(caller: socket.socket, action: Callable[[], None]) -> None:
    caller.close()  # it is answered by the parent, also where this one leaves processes behind
    action()


def start_python(caller: socket.socket, files: list[int], asked: dict[str, Any]) -> None:
    """Start a process, wait for it, and answer; it ends with its caller."""
    pid = os.fork()
    if not pid:
        caller.close()
        leave(ending_of(partial(become_python, files, **asked)))
    for number in files:
        os.close(number)
    caller.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([caller, ended], [], [])[0]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        caller.sendall(f"{code}\n".encode())


def become_python(
    files: list[int],
    *,
    words: list[str],
    environment: dict[str, str],
    cwd: str,
    executable: str,
    packages: str = "",
) -> None:
    """Start as Python does, with its command line."""
    os.setsid()
    os.chdir(cwd)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    draw_anew()
    if packages:
        _find_packages_in(packages)
    kind, *rest = words if words[0] in ("-c", "-m") else ["", *words]
    script = (
        os.path.dirname(os.path.abspath(rest[0]))
        if not kind
        else os.getcwd()
        if kind == "-m"
        else ""
    )
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [script, *paths]
    sys.executable, sys.orig_argv, sys.argv = (
        executable,
        [executable, *words],
        rest if kind != "-c" else words[:1],
    )
    if kind == "-c":
        sys.argv += rest[1:]
    _let_the_site_begin()
    if kind == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__file__ = rest[0]
        exec(compile(Path(rest[0]).read_bytes(), rest[0], "exec"), vars(main))


def _find_packages_in(folder: str) -> None:
    """Be in another environment of the same Python; what was imported before stays."""
    package_paths = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    sys.path[:] = dict.fromkeys(folder if path in package_paths else path for path in sys.path)
    sys.prefix = sys.exec_prefix = str(Path(folder).parents[2])


def start_server(caller: socket.socket, asked: dict[str, Any]) -> None:
    """Import more, with more environment variables, and listen at a separate address."""
    os.environ.update(asked["environment"])
    sys.path[1:1] = asked["paths"]
    _let_the_site_begin()
    listen(asked["address"], asked["modules"], lambda: caller.sendall(b"ready\n"))


def _let_the_site_begin() -> None:
    """Python does so at its start, where there is such a module."""
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def serve(listener: socket.socket) -> None:
    """Fork a process for each caller to handle its request, until the server is no longer used."""
    users: list[socket.socket] = []
    while True:
        ready = select.select([listener, *users], [], [], None if users else PATIENCE)[0]
        if not ready:
            return
        for user in [user for user in users if user in ready]:  # readable without data: it is gone
            users.remove(user)
            if not users:
                return
        if listener in ready:
            caller, _ = listener.accept()
            kind, files, _, _ = socket.recv_fds(caller, 1, 3)
            if kind == b"u":
                users.append(caller)
                caller.sendall(b"u")
            elif kind and not os.fork():
                for other in (listener, *users):
                    other.close()
                with caller.makefile("rb") as stream:
                    request = json.loads(stream.readline())
                if kind == b"p":
                    start_python(caller, files, request)
                else:
                    (start_ranks if kind == b"r" else start_server)(caller, request)
                os._exit(0)
            else:
                for number in files:
                    os.close(number)
                caller.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def listen(address: str, modules: list[str], ready: Callable[[], object]) -> None:
    """Import modules, and serve until they are not used any more; what is left over then is
    killed.
    """
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each child would copy what the collector touches
    # which comes with a torch for CUDA, and lists at the end what was not freed
    if "triton" in sys.modules:
        atexit.register(gc.unfreeze)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        ready()
        serve(listener)
    for left in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


def say_that_it_listens() -> None:
    """Its parent waits for that, and reads no further."""
    print("ready", flush=True)
    os.dup2(2, 1)


if __name__ == "__main__":
    listen(sys.argv[1], sys.argv[2:], say_that_it_listens)
