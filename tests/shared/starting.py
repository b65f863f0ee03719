"""Programs that tests start: each comes to its end, or is ended with all that it started, and what it said is read."""

import atexit
import contextlib
import fcntl
import functools
import hashlib
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

HERE = Path(__file__).parent
CHILDREN = str(HERE.parents[1] / "package" / "serving" / "children")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(HERE)}
OURS = (
    "lightrainer.facade.trainer",
    "lightrainer.facade.trainer.trainer_module",
    "lightrainer.facade.trainer.lightning_trainer",
    "torch._dynamo",
)
REFERENCE = ("transformers.trainer", "transformers.trainer_seq2seq", "accelerate")
MODELS = ("transformers.models.llama.modeling_llama",)
# What scripts import that have to find the Trainer and its arguments as not imported yet.
TORCH = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "pandas", "matplotlib.pyplot")
LIBRARIES = (*TORCH, "torch.distributed.checkpoint", "torch.utils.tensorboard", "datasets", "optuna", "accelerate")
FROM_TRANSFORMERS = (
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.generation",
)
LIGHTNING = (
    "lightrainer.lightning_modules.internals.lightning_internals",
    "lightrainer.lightning_modules.internals.fast_path",
)
IMPORTED = {
    "torch": TORCH,
    "lightrainer": OURS,
    "lightrainer and models": (*OURS, *REFERENCE, *MODELS),
    "transformers": (*OURS, *REFERENCE, *MODELS),
    "lightrainer and deepspeed": ("with_deepspeed", *OURS, "deepspeed"),
    "transformers and deepspeed": ("with_deepspeed", *TORCH, *REFERENCE, "deepspeed"),
    "plain": (*LIBRARIES, *FROM_TRANSFORMERS),
    "served": (*LIBRARIES, *LIGHTNING, *FROM_TRANSFORMERS),
}
"""What a library imports when it trains; with `torch` alone ours is imported anew, and finds its environment."""
SERVED = {"LIGHTRAINER_INSTALL": "1", "PYTHONPATH": os.pathsep.join([CHILDREN, str(HERE)])}
SERVERS = "LIGHTRAINER_TESTS_SERVERS"
"""Names the folder in which the servers listen; all workers of a run share them."""


def _of_torchrun(processes: int) -> list[str]:
    return [f"--nproc_per_node={processes}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]


def start(command: list[str], log: Path, **environment: str) -> subprocess.Popen:
    """Start it; what all of it says goes to a file: one that hangs would keep a pipe open, and hang its reader too."""
    with log.open("a") as stream:
        known = {**os.environ, **ENVIRONMENT, **environment}
        return subprocess.Popen(command, env=known, stdout=stream, stderr=subprocess.STDOUT)


def code_of(process: subprocess.Popen, log: Path, seconds: float) -> int:
    """The exit code; a failure, and no process left, where there is none after so many seconds."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process.pid)
        process.wait()
        pytest.fail(f"{' '.join(map(str, process.args))}\nwas not done after {seconds} s\n{said_in(log)[-6000:]}")


def finished_ranks(
    script: str | Path,
    *words: str,
    log: Path,
    seconds: float,
    processes: int = 2,
    library: str = "lightrainer",
    **environment: str,
) -> str:
    """What was said by a script that ends well in so many processes, see `forked_ranks`."""
    options = {"log": log, "seconds": seconds, "processes": processes, "library": library}
    codes, said = forked_ranks(script, *words, **options, **environment)
    assert codes == [0] * max(processes, 1), f"{script} {' '.join(words)}\nended with {codes}\n{said[-8000:]}"
    return said


def forked_ranks(
    script: str | Path,
    *words: str,
    log: Path,
    seconds: float,
    processes: int = 2,
    library: str = "lightrainer",
    **environment: str,
) -> tuple[list[int] | str, str]:
    """The exit codes of a script in so many processes, or why there are none, and what was said.

    They are started as torchrun does it, but at once, from a process that has imported the library: tests that are not
    about the start itself take a fraction of the time. No processes are one that is started without torchrun.
    """
    asked = {"script": str(script), "words": words, "processes": processes, "torchrun": None, "seconds": seconds}
    return _answer(library, {**asked, "environment": {**os.environ, **ENVIRONMENT, **environment}, "log": str(log)})


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
    """The exit code of torchrun with so many processes of a script, and what was said.

    It is torch's own launcher that looks after them, passes signals on and starts them again; but neither it nor they
    are new Pythons, see `forked_ranks`.
    """
    asked = {"script": str(script), "words": words, "processes": processes, "seconds": seconds, "log": str(log)}
    asked |= {"torchrun": [*_of_torchrun(processes), *options]}
    codes, said = _answer(library, {**asked, "environment": {**os.environ, **ENVIRONMENT, **environment}})
    if isinstance(codes, str):
        pytest.fail(codes)
    return codes[0], said


def _answer(library: str, asked: dict[str, Any]) -> tuple[list[int] | str, str]:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(_server(library))
        server.sendall(b"r")
        server.sendall(json.dumps(asked).encode() + b"\n")
        with server.makefile() as answers:
            told = json.loads(answers.readline() or '"its server has ended"')
    return told, said_in(Path(asked["log"]))


def finished_code(code: str, folder: Path, seconds: float = 180, **options: Any) -> str:
    """What was said by code that ends well in a process of its own, forked as by `forked_ranks`."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    return finished_ranks(script, log=folder / "log.txt", seconds=seconds, **{"processes": 0, **options})


@functools.cache
def forked_python() -> str:
    """A program that does what this Python does with a script, `-c` or `-m`, but has imported everything already.

    For tests of programs that start Python again and again, and that are not about its start: they find it as
    `sys.executable`, and the command `lightrainer` beside it. Names are served where the environment says so. Hash
    seeds are not read, and of filters of warnings only "ignore" is.
    """
    servers = {kind: _server(kind) for kind in ("plain", "served")}
    folder = Path(tempfile.mkdtemp(dir=os.environ[SERVERS]))  # it is there: the servers listen in it
    command = folder / "lightrainer"
    command.write_text('#!/bin/sh\nexec "${0%/*}/python" -m lightrainer "$@"\n')
    command.chmod(0o755)
    program, code = folder / "python", (HERE / "forked_python.py").read_text()
    call = f"\n\nif __name__ == '__main__':\n    main({sys.executable!r}, {servers!r})\n"
    program.write_text(f"#!{sys.executable} -IS\n{code}{call}")
    program.chmod(0o755)
    return str(program)


_started: list[subprocess.Popen] = []


@functools.cache
def _server(library: str) -> str:
    """Where the process listens from which others are forked: until all have ended that use it, as this one does."""
    modules = IMPORTED[library]
    Path(os.environ[SERVERS]).mkdir(mode=0o700, exist_ok=True)
    address = Path(os.environ[SERVERS], f"{_digest(modules)}-{library == 'served'}")
    user = socket.socket(socket.AF_UNIX)
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            known = {**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "0", **(SERVED if library == "served" else {})}
            command = [sys.executable, str(HERE / "forking_server.py"), str(address), *modules]
            server = subprocess.Popen(command, env=known, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            _started.append(server)
            assert server.stdout is not None
            with server.stdout:
                assert server.stdout.readline(), "the server has ended"
        user.connect(str(address))
    user.sendall(b"u")
    atexit.register(user.close)
    return str(address)


def _digest(modules: tuple[str, ...]) -> str:
    return hashlib.sha1(" ".join(modules).encode()).hexdigest()[:12]


def kill(pid: int) -> None:
    """Kill a process and all that it started: the ranks are in sessions of their own."""
    for member in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def said_in(log: Path) -> str:
    return log.read_text(errors="replace")
