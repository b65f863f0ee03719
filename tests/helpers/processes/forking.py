"""Real processes that start immediately: one or several, forked from a parent that has imported
everything.

Each leads its own process group, so that its workers are killed with it.
"""

import atexit
import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

SECONDS = 60  # anything slower hangs: it takes a second or two
SPARE = 60  # for terminating late processes and reporting it
# torchrun waits for half a minute between asking the other processes to end and killing them
GRACE = 3.0


@dataclass(frozen=True)
class Ended:
    """How processes ended: `codes` by rank, negative for a signal as in `subprocess`; their
    output; the time.
    """

    codes: list[int]
    said: str
    seconds: float


def forked(
    action: Callable[[], object],
    processes: int = 1,
    *,
    log: Path,
    killed_after: float | None = None,
    victims: Iterable[int] = (0,),
    seconds: float = SECONDS,
    as_a_script: bool = False,
    place: bool = False,
) -> Ended:
    """Fork `processes` processes and wait until all have ended; when one fails, the others are
    terminated as by torchrun.

    Args:
        action: run by each process; with several processes `RANK` and the like are set.
        processes: number of processes.
        log: file for their output.
        killed_after: seconds until the victims get a SIGKILL.
        victims: their ranks.
        seconds: timeout, after which hanging processes are killed.
        as_a_script: each process starts with different random numbers, all its output is logged,
            and it exits as Python does, with the registered exit functions; otherwise immediately.
        place: set `RANK` and the like for a single process too, as torchrun does.
    """
    log.touch()
    begin, port = time.monotonic(), free_port() if processes > 1 or place else 0
    running = {
        rank: _fork(action, rank, processes, port, log, as_a_script) for rank in range(processes)
    }
    groups, codes, failed_at = list(running.values()), {}, None
    while running:
        for rank, pid in list(running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[rank]
                codes[rank] = os.waitstatus_to_exitcode(status)
        now = time.monotonic() - begin
        if killed_after is not None and now >= killed_after:
            _send(signal.SIGKILL, [pid for rank, pid in running.items() if rank in victims])
            killed_after = None
        if failed_at is None and any(codes.values()):
            failed_at = now
            _send(signal.SIGTERM, running.values())
        if now > (seconds if failed_at is None else failed_at + GRACE):
            _send(signal.SIGKILL, running.values())
        time.sleep(0.002)
    _send(signal.SIGKILL, groups, to_group=True)
    ended = Ended(
        [codes[rank] for rank in range(processes)],
        log.read_text(errors="replace"),
        time.monotonic() - begin,
    )
    if ended.seconds > seconds:
        raise TimeoutError(f"not done after {seconds} s\n{ended.said[-6000:]}")
    return ended


def _fork(
    action: Callable[[], object],
    rank: int,
    processes: int,
    port: int,
    log: Path,
    as_a_script: bool,
) -> int:
    pid = os.fork()
    if pid:
        return pid

    def act() -> None:
        os.setpgid(0, 0)
        _speak_into(log, everything=as_a_script)
        if port:
            environment = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "WORLD_SIZE": processes,
                "RANK": rank,
            }
            environment |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": processes}
            os.environ.update({name: str(value) for name, value in environment.items()})
        if as_a_script:
            draw_anew()
        action()
        if not as_a_script:
            _leave_the_others()

    code = ending_of(act)
    if as_a_script:
        leave(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def ending_of(action: Callable[[], object]) -> int:
    """Return the exit code of Python after this action, and print the error that Python prints;
    the code is negative for a signal.
    """
    try:
        action()
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return ending.code or 0
        print(ending.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def leave(code: int) -> NoReturn:
    """End as Python ends, with its threads, what was registered for that, and the objects of the
    script.

    What was imported is left as it is: to free it takes a third of a second, as it has to be copied
    for that.
    """
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        vars(sys.modules["__main__"]).clear()
        sys.stdout.flush()
        sys.stderr.flush()
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code & 0xFF)


def _speak_into(log: Path, *, everything: bool) -> None:
    """Where the logs of the losses are of no interest, only warnings and errors; and hear
    nothing.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(2 if everything else os.open(os.devnull, os.O_WRONLY), 1)


def draw_anew() -> None:
    """Seed from the system, as in a new process."""
    import numpy

    random.seed()
    numpy.random.seed()


def _leave_the_others() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _send(number: int, pids: Iterable[int], *, to_group: bool = False) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if to_group else os.kill)(pid, number)


def free_port(address: str = "127.0.0.1") -> int:
    """None of those that the system gives to connections: one of them might have it before the
    processes do.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
