"""Simulated machines, each with its own network address, host name, processes and disk.

They are Linux namespaces behind a bridge where the system allows that; it takes root and is often
forbidden in containers. Otherwise they are process groups with loopback addresses, which share the
host name and the disk.
"""

import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from helpers.processes.forking import free_port

# of `unshare`, see <sched.h>
NETWORK, NAMES, MOUNTS, PIDS = 0x40000000, 0x04000000, 0x00020000, 0x20000000
PRIVATE, BIND = 0x44000, 0x1000  # of `mount`: MS_REC | MS_PRIVATE, and MS_BIND
SUBREAPER = 36  # of `prctl`
SECONDS = 90
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), None)


def _ip(*lines: str) -> None:
    process = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    if process.returncode:
        raise OSError(f"ip: {process.stderr.strip()}")


@functools.cache
def why_not_isolated() -> str:
    """Why there can be no namespaces here; nothing where there can."""
    commands = (
        "ip link add switch type bridge && ip link add port type veth peer name plug && ip link "
        "set lo up"
    )
    command = [
        "unshare",
        "--net",
        "--uts",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-ec",
        commands,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no network namespaces here: {error}"
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Machine:
    """One of them, which runs one program, and what that starts.

    Attributes:
        number: from 0.
        name: its host name; where nothing is isolated, its address.
        address: of its network.
        disk: a folder that belongs to it alone.
        log: what its processes say.
        pid: of the process that waits for it; 0 before it is started.
    """

    number: int
    name: str
    address: str
    disk: Path
    log: Path
    pid: int = 0
    inner: int = 0
    code: int | None = field(default=None, repr=False)

    def said(self) -> str:
        return self.log.read_text(errors="replace")


class Machines:
    """`count` machines, connected to each other and to nothing else.

    If they are isolated, the calling process moves into the network between them and stays there.

    Args:
        folder: for their output and their disks.
        count: number of machines.
        isolated: use namespaces.
    """

    def __init__(self, folder: Path, count: int, isolated: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.isolated = folder, isolated
        self.all = [self._machine(number) for number in range(count)]
        if isolated:
            _call("unshare", NETWORK)
            _ip("link set lo up", "link add switch type bridge", "link set switch up")
            names = [f"{machine.address} {machine.name}" for machine in self.all]
            (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        self.port = free_port(self.all[0].address if not isolated else "127.0.0.1")
        self.endpoint = f"{self.all[0].name}:{self.port}"

    def _machine(self, number: int) -> Machine:
        address = f"10.9.0.{number + 1}" if self.isolated else f"127.0.0.{number + 2}"
        disk = self.folder / f"disk{number}"
        disk.mkdir(exist_ok=True)
        name = f"node{number}" if self.isolated else address
        return Machine(number, name, address, disk, self.folder / f"machine{number}.txt")

    def start(self, number: int, program: Callable[[], object]) -> None:
        """Start or restart a machine: the program runs in a separate process, without arguments."""
        machine = self.all[number]
        ready, wired, begun = os.pipe(), os.pipe(), os.pipe()
        machine.code, machine.pid = None, os.fork()
        if not machine.pid:
            try:
                os.setsid()
                _speak_into(machine.log)
                if self.isolated:
                    self._isolate(machine, ready[1], wired[0])
                _look_after(begun[1], program, isolated=self.isolated)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            os._exit(1)
        os.close(ready[1])
        os.close(begun[1])
        if self.isolated and os.read(ready[0], 1):
            port = f"port{number}-{machine.pid}"[:15]
            _ip(
                f"link add {port} type veth peer name eth0 netns {machine.pid}",
                f"link set {port} master switch up",
            )
            os.write(wired[1], b"1")
        machine.inner = int(os.read(begun[0], 20) or 0)
        for end in (ready[0], *wired, begun[0]):
            os.close(end)

    def _isolate(self, machine: Machine, ready: int, wired: int) -> None:
        _call("unshare", NETWORK | NAMES | MOUNTS)
        os.write(ready, b"1")
        os.read(wired, 1)
        socket.sethostname(machine.name)
        _ip("link set lo up", f"addr add {machine.address}/24 dev eth0", "link set eth0 up")
        _mount("none", "/", None, PRIVATE)
        _mount(str(self.folder / "hosts"), "/etc/hosts", None, BIND)
        (self.folder / "disk").mkdir(exist_ok=True)
        _mount(str(machine.disk), str(self.folder / "disk"), None, BIND)

    def disk_of(self, number: int) -> Path:
        """The folder under which a machine sees its own disk: the same on all, where they are
        isolated.
        """
        return self.folder / "disk" if self.isolated else self.all[number].disk

    def wait(self, *numbers: int, seconds: float = SECONDS) -> list[int]:
        """The exit codes of these machines, or of all if none is given, once all their processes
        have ended.
        """
        end, machines = (
            time.monotonic() + seconds,
            [self.all[number] for number in numbers or range(len(self.all))],
        )
        while any(machine.code is None for machine in machines):
            for machine in machines:
                done, status = (
                    (0, 0) if machine.code is not None else os.waitpid(machine.pid, os.WNOHANG)
                )
                if done:
                    machine.code = os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                self.kill(*(machine.number for machine in self.all if machine.code is None))
                raise TimeoutError(
                    f"{[machine.name for machine in machines]} did not finish in {seconds} "
                    f"s\n{self.said()}"
                )
            time.sleep(0.01)
        return [machine.code or 0 for machine in machines]

    def said(self) -> str:
        """Return the last output of each machine."""
        return "\n".join(f"--- {machine.name}\n{machine.said()[-6000:]}" for machine in self.all)

    def kill(self, *numbers: int) -> None:
        """Switch machines off: their processes are killed without any cleanup."""
        for machine in (self.all[number] for number in numbers):
            if self.isolated:
                # the first process of its namespace: all others end with it
                os.kill(machine.inner, signal.SIGKILL)
            else:
                os.killpg(machine.pid, signal.SIGKILL)

    def kill_program(self, number: int) -> None:
        """Kill the program that a machine runs, and nothing that it has started."""
        (program,) = psutil.Process(self.all[number].inner or self.all[number].pid).children()
        program.kill()

    def cut_off(self, number: int) -> None:
        """Pull its plug out of the network; it runs on, and what is sent to it is lost."""
        _ip(f"link set {f'port{number}-{self.all[number].pid}'[:15]} down")

    def until(self, path: Path, seconds: float = SECONDS) -> None:
        """Wait for a file that some machine writes."""
        end = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{path} was not written in {seconds} s\n{self.said()}")
            time.sleep(0.01)


def _look_after(begun: int, program: Callable[[], object], *, isolated: bool) -> None:
    """Run a program as the first process of a machine does; ends with its code once all that it
    left has ended.
    """
    if isolated:
        _call("unshare", PIDS)  # no later: the next child is the first process in there
    inner = os.fork() if isolated else 0
    if inner:
        os.write(begun, str(inner).encode())
        os._exit(_code(os.waitpid(inner, 0)[1]))
    if isolated:
        _mount("proc", "/proc", "proc", 0)
    else:
        _call("prctl", SUBREAPER, 1, 0, 0, 0)
        os.write(begun, str(os.getpid()).encode())
    pid, codes = os.fork(), {}
    if not pid:
        _run(program)
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            os._exit(codes[pid])
        codes[ended] = _code(status)


def _run(program: Callable[[], object]) -> None:
    code: object = 1
    try:
        program()
        code = 0
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _code(status: int) -> int:
    """As a shell has it: a signal is 128 and its number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _speak_into(log: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
