"""Stage `compare`: each example under both Trainers, by `lightrainer compare`."""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .cases import Outcome, Setting

FLAGS = {"image_classification.py": ["--remove_unused_columns", "False"]}
"""What a script needs on its command line, as it says itself."""

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scripts"


def cases(setting: Setting) -> dict[str, Callable[[], Outcome]]:
    """Return a case for each example; a rehearsal takes one."""
    scripts = sorted(EXAMPLES.glob("*.py"))
    return {
        path.name: functools.partial(run, path, setting)
        for path in ([EXAMPLES / "own_model.py"] if setting.small else scripts)
    }


def run(script: Path, setting: Setting) -> Outcome:
    """Compare; it fails where something differs."""
    if "transformers" not in setting.libraries():
        return {"skipped": "transformers is not installed"}
    command = [sys.executable, "-m", "lightrainer", "compare", "--tolerance", "1e-3"]
    options = ["--output_dir", "out", "--do_train", "--do_eval", "--max_steps", "10"]
    with tempfile.TemporaryDirectory() as folder:
        flags = [*options, *FLAGS.get(script.name, []), *(["--use_cpu"] if setting.small else [])]
        done = subprocess.run(
            [*command, str(script), *flags],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    return {
        "passed": done.returncode == 0,
        "note": "" if done.returncode == 0 else (done.stdout + done.stderr)[-800:],
    }
