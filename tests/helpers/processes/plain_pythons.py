"""Runs each script in a separate process."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from helpers.processes.starting import python_from_torch
from lightrainer.interception.environment import switch_on

SECONDS = 120


def clean_environment(**more):
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LIGHTRAINER", "PYTHONPATH"))
    }
    return {**inherited, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}


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
    """As `run`, with code (`-c`) or a script, from a process that has imported torch: where the
    start is not tested.

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
        files = {name: Path(folder, name) for name in ("input", "stdout", "stderr")}
        files["input"].write_text(input)
        options = {"cwd": cwd, "environment": variables, "files": files, "seconds": SECONDS}
        code = python_from_torch(python, *map(str, words), **options)
        output, errors = (files[name].read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess([python, *words], code, output, errors)


def last_json(done):
    """Return the last line of a script, as JSON; fail with its errors if it failed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
