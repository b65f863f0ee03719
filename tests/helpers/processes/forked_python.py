"""Stands in for Python, and lets a process that has imported everything do what Python would: see
`forking_server.py`.

Made executable by `starting.forked_python`, which writes what this begins with, and where the
servers listen. It passes signals on, and ends as that process does. What is not a script, `-c` or
`-m`, after `-u` perhaps, is left to Python itself.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def main(python: str, servers: dict[str, str]) -> None:
    words = sys.argv[1:]
    if words[:1] == ["-u"]:
        os.environ["PYTHONUNBUFFERED"] = "1"
        del words[0]
    if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        os.execv(python, [python, *words])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    # A recorder waits for the import of modules that are already imported where names are served.
    served = (
        os.environ.get("LIGHTRAINER_INSTALL") == "1" and "LIGHTRAINER_RECORDER" not in os.environ
    )
    executable = os.path.abspath(__file__)
    request = {
        "words": words,
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "executable": executable,
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(servers["served" if served else "plain"])
        socket.send_fds(server, [b"p"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        with server.makefile() as answers:
            pid = int(answers.readline())
            for number in PASSED_ON:
                signal.signal(number, lambda number, _: os.kill(pid, number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            code = int(answers.readline() or "70")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)
