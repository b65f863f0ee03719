"""Runs scripts in processes of their own."""

import atexit
import functools
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path

import pytest
from starting import kill

from lightrainer.serving.environment import switch_on

SECONDS = 120


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LIGHTRAINER", "PYTHONPATH"))}
    return {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}


def run(python, *words, cwd, **kwargs):
    """The finished process; its output is text."""
    more = kwargs.pop("environment", {})
    return subprocess.run(
        [python, *map(str, words)],
        cwd=cwd,
        env=clean_environment(**more),
        capture_output=True,
        text=True,
        timeout=kwargs.pop("timeout", SECONDS),
        **kwargs,
    )


def forked(python, *words, cwd, served=False, input="", environment=None):
    """As `run`, with code (`-c`) or a script, from a process that has imported torch: where the start is not tested.

    Args:
        python: of which environment.
        words: of the command line.
        cwd: the folder to be in.
        served: as the runner has it, which sets these variables too, and starts Python.
        input: text.
        environment: more variables.
    """
    variables = clean_environment(**(environment or {}))
    if served:
        switch_on(variables)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, name)) for name in ("input", "stdout", "stderr")}
        for name, path in files.items():
            Path(path).write_text(input if name == "input" else "")
        asked = {"words": [*map(str, words)], "cwd": str(cwd), "environment": variables, **files}
        code = _answer(python, json.dumps(asked))
        said_, errors = (Path(files[name]).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess([python, *words], code, said_, errors)


def _answer(python, question):
    server = _parent(python)
    server.stdin.write(question + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], SECONDS)[0]:
        kill(server.pid)
        _parent.cache_clear()
        pytest.fail(f"not done after {SECONDS} s: {question[:2000]}")
    return int(server.stdout.readline())


@functools.cache
def _parent(python):
    """The process from which others are forked, until this one ends."""
    command = [python, str(Path(__file__).with_name("forking_python.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, env=clean_environment(), **pipes)
    atexit.register(kill, server.pid)
    return server


def said(done):
    """What a script printed last, as JSON; its errors where it failed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
