"""Start programs for tests, read their output, and kill them with all their children on time-out."""

import atexit
import contextlib
import fcntl
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers import HELPERS, TESTS
from helpers.processes.forking import SPARE

HERE = HELPERS / "processes"
SECONDS = 300
"""In which a server has imported its libraries."""
CHILDREN = str(TESTS.parent / "package" / "interception" / "children")
NEWEST = Path(sys.prefix) / "newest"
"""Folder in which `make` installs the newest transformers."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(TESTS)}
# Nothing that looks for transformers, or that is served.
TORCH = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.experimental",
    "pandas",
    "matplotlib.pyplot",
)
OURS = tuple(
    f"lightrainer.facade.trainer{inside}"
    for inside in ("", ".trainer_module", ".lightning_trainer")
)
REFERENCE = ("transformers.trainer", "transformers.trainer_seq2seq", "accelerate")
LIBRARIES = (
    "torch.distributed.checkpoint",
    "torch.utils.tensorboard",
    "datasets",
    "optuna",
    "accelerate",
)
# What scripts import that have to find the Trainer and its arguments as not imported yet.
FROM_TRANSFORMERS = (*(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2")),)
FROM_TRANSFORMERS += ("transformers.generation",)
# Its optimizers are compiled when the first engine is made: what does that takes seconds to import.
DEEPSPEED = ("helpers.ddp.with_deepspeed", "deepspeed", "torch._inductor.compile_fx")
LIGHTNING = tuple(
    f"lightrainer.lightning_modules.internals.{name}"
    for name in ("lightning_internals", "fast_path")
)
IMPORTED: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "torch": (None, TORCH),
    "lightrainer": ("torch", OURS),
    "transformers": ("lightrainer", (*REFERENCE, "transformers.models.llama.modeling_llama")),
    "deepspeed": ("torch", DEEPSPEED),
    "lightrainer and deepspeed": ("deepspeed", OURS),
    "transformers and deepspeed": ("lightrainer and deepspeed", REFERENCE),
    "newest": ("torch", REFERENCE),
    "libraries": ("torch", LIBRARIES),
    "plain": ("libraries", FROM_TRANSFORMERS),
    "served": ("libraries", (*LIGHTNING, *FROM_TRANSFORMERS)),
}
"""Imports of servers, each after those of the one that it is forked from. "transformers" are those
of both libraries; with "torch" alone ours is imported again, and finds its environment. "newest" is
the newest version of transformers.
"""
PATHS = {"newest": [str(NEWEST)], "served": [CHILDREN]}
"""Where servers look for modules first."""
SERVERS = "LIGHTRAINER_TESTS_SERVERS"
"""Names the folder in which the servers listen; all workers of a run share them."""


def _of_torchrun(processes: int) -> list[str]:
    return [f"--nproc_per_node={processes}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]


def start(command: list[str], log: Path, **environment: str) -> subprocess.Popen:
    """Start it; all output goes to a file: a process that hangs would keep a pipe open, and
    block its reader too.
    """
    with log.open("a") as stream:
        variables = {**os.environ, **ENVIRONMENT, **environment}
        return subprocess.Popen(command, env=variables, stdout=stream, stderr=subprocess.STDOUT)


def code_of(process: subprocess.Popen, log: Path, seconds: float) -> int:
    """Return the exit code; after `seconds` kill the process and fail the test."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process.pid)
        process.wait()
        pytest.fail(
            f"{' '.join(map(str, process.args))}\nwas not done after {seconds} "
            f"s\n{read_output(log)[-6000:]}"
        )


def finished_ranks(
    script: str | Path,
    *words: str,
    log: Path,
    seconds: float,
    processes: int = 2,
    library: str = "lightrainer",
    **environment: str,
) -> str:
    """Return the output of a script that succeeds in `processes` processes, see `forked_ranks`."""
    options = {"log": log, "seconds": seconds, "processes": processes, "library": library}
    codes, output = forked_ranks(script, *words, **options, **environment)
    assert codes == [0] * max(processes, 1), (
        f"{script} {' '.join(words)}\nended with {codes}\n{output[-8000:]}"
    )
    return output


def forked_ranks(
    script: str | Path,
    *words: str,
    log: Path,
    seconds: float,
    processes: int = 2,
    library: str = "lightrainer",
    **environment: str,
) -> tuple[list[int] | str, str]:
    """Return the exit codes of a script in `processes` processes, or the error, and the output.

    They are started as by torchrun, but forked from a process that has imported the library: tests
    that are not about startup itself take a fraction of the time. Zero processes mean one that is
    started without torchrun.
    """
    request = {
        "script": str(script),
        "words": words,
        "processes": processes,
        "torchrun": None,
        "seconds": seconds,
    }
    return _answer(
        library,
        {**request, "environment": {**os.environ, **ENVIRONMENT, **environment}, "log": str(log)},
    )


def forked_torchrun(
    script: str | Path,
    *words: str,
    log: Path,
    seconds: float,
    processes: int = 2,
    options: tuple[str, ...] = (),
    library: str = "lightrainer",
    **environment: str,
) -> tuple[int, str]:
    """The exit code of torchrun with `processes` processes of a script, and the output.

    Torch's own launcher supervises them, passes signals on and restarts them; but
    neither it nor they are new Pythons, see `forked_ranks`.
    """
    request = {
        "script": str(script),
        "words": words,
        "processes": processes,
        "seconds": seconds,
        "log": str(log),
    }
    request |= {"torchrun": [*_of_torchrun(processes), *options]}
    codes, output = _answer(
        library, {**request, "environment": {**os.environ, **ENVIRONMENT, **environment}}
    )
    if isinstance(codes, str):
        pytest.fail(codes)
    return codes[0], output


def _answer(library: str, asked: dict[str, Any]) -> tuple[list[int] | str, str]:
    outcome = json.loads(_ask_server(_server(library), b"r", asked) or '"its server has ended"')
    return outcome, read_output(Path(asked["log"]))


def finished_code(code: str, folder: Path, seconds: float = 180, **options: Any) -> str:
    """Return the output of code that succeeds in a separate process, forked as by
    `forked_ranks`.
    """
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    return finished_ranks(
        script, log=folder / "log.txt", seconds=seconds, **{"processes": 0, **options}
    )


@functools.cache
def forked_python() -> str:
    """A program that does what this Python does with a script, `-c` or `-m`, but has imported
    everything already.

    For tests of programs that start Python again and again, and that are not about its start: they
    find it as `sys.executable`, and the command `lightrainer` beside it. Names are served where the
    environment says so. Hash seeds are not read, and of filters of warnings only "ignore" is.
    """
    servers = {kind: _server(kind) for kind in ("plain", "served")}
    # it is there: the servers listen in it
    folder = Path(tempfile.mkdtemp(dir=os.environ[SERVERS]))
    command = folder / "lightrainer"
    command.write_text('#!/bin/sh\nexec "${0%/*}/python" -m lightrainer "$@"\n')
    command.chmod(0o755)
    program, code = folder / "python", (HERE / "forked_python.py").read_text()
    call = f"\n\nif __name__ == '__main__':\n    main({sys.executable!r}, {servers!r})\n"
    program.write_text(f"#!{sys.executable} -IS\n{code}{call}")
    program.chmod(0o755)
    return str(program)


def python_from_torch(
    python: str,
    *words: str,
    cwd: str | Path,
    environment: dict[str, str],
    files: dict[str, Path],
    seconds: float,
) -> int:
    """The exit code of a Python with a command line (`-c`, `-m` or a script) that has imported
    torch, and none of ours.

    Args:
        python: this one, or that of a virtual environment of it, whose packages are found then.
        words: of the command line.
        cwd: the folder to be in.
        environment: all of its variables.
        files: `input`, which is there, `stdout` and `stderr`.
        seconds: after which it is taken to hang.
    """
    request = {"words": words, "environment": environment, "cwd": str(cwd), "executable": python}
    if python != sys.executable:
        request["packages"] = str(next(Path(python).parents[1].glob("lib/python*/site-packages")))
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.socket(socket.AF_UNIX))
        server.connect(_server("torch"))
        modes = {"input": "r", "stdout": "w", "stderr": "w"}
        numbers = [
            opened.enter_context(files[name].open(mode)).fileno() for name, mode in modes.items()
        ]
        socket.send_fds(server, [b"p"], numbers)
        server.sendall(json.dumps(request).encode() + b"\n")
        server.settimeout(seconds)
        answers = opened.enter_context(server.makefile())
        try:
            answers.readline()
            return int(answers.readline() or "70")
        except TimeoutError:
            pytest.fail(
                f"{python} {' '.join(words)}\nwas not done after {seconds} "
                f"s\n{read_output(files['stderr'])[-6000:]}"
            )


_started: list[subprocess.Popen] = []


@functools.cache
def _server(library: str) -> str:
    """The address of the process from which others are forked; it lives until all its users have
    ended, such as this process.
    """
    parent, modules = IMPORTED[library]
    Path(os.environ[SERVERS]).mkdir(mode=0o700, exist_ok=True)
    address = Path(os.environ[SERVERS], library.replace(" ", "-"))
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        above = parent and _server(parent)  # it lives as long as this one: it has the same users
        user = _joined(address)
        if user is None:
            address.unlink(missing_ok=True)
            reply = (
                _forked_server(above, address, library)
                if above
                else _started_server(address, modules)
            )
            assert reply, "the server has ended"
            user = _joined(address)
            assert user is not None, "the server has ended"
    atexit.register(user.close)
    return str(address)


def _joined(address: Path) -> socket.socket | None:
    """Use the server that listens there: the connection, or None if its last user has left or
    no server is running.
    """
    user = socket.socket(socket.AF_UNIX)
    user.settimeout(SPARE)
    with contextlib.suppress(OSError):
        user.connect(str(address))
        user.sendall(b"u")
        if user.recv(1):
            return user
    user.close()
    return None


def _started_server(address: Path, modules: tuple[str, ...]) -> bytes:
    environment = {**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(HERE / "forking_server.py"), str(address), *modules]
    server = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    _started.append(server)
    assert server.stdout is not None
    with server.stdout:
        return server.stdout.readline()


def _forked_server(parent: str, address: Path, library: str) -> str:
    environment = {"LIGHTRAINER_INSTALL": "1"} if library == "served" else {}
    request = {
        "address": str(address),
        "modules": IMPORTED[library][1],
        "paths": PATHS.get(library, []),
    }
    return _ask_server(parent, b"s", {**request, "environment": environment})


def _ask_server(server: str, kind: bytes, asked: dict[str, Any]) -> str:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(asked.get("seconds", SECONDS) + 2 * SPARE)
        caller.connect(server)
        caller.sendall(kind)
        caller.sendall(json.dumps(asked).encode() + b"\n")
        with caller.makefile() as answers:
            return answers.readline()


def kill(pid: int) -> None:
    """Kill a process and all its descendants: the ranks are in separate sessions."""
    for member in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def read_output(log: Path) -> str:
    return log.read_text(errors="replace")
