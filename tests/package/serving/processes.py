"""Runs scripts in processes of their own."""

import json
import os
import subprocess


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
        timeout=kwargs.pop("timeout", 120),
        **kwargs,
    )


def said(done):
    """What a script printed last, as JSON; its errors where it failed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
