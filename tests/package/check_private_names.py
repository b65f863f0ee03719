"""Shows that each private name of Lightning has a test: renames it in a copy of Lightning, and its test has to fail.

    python tests/package/check_private_names.py

Lightning itself runs as before under the other name; only what this package does with it does not. `make
test-private-names` runs this; it takes some minutes.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning
from test_private_names import TESTS, rows


def renamed(copy: Path, name: str) -> dict[Path, str]:
    """Give another name to what is called `name` in a copy of Lightning; returns what the files were."""
    before = {}
    for path in copy.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        other = re.sub(rf"\b{name}\b", f"{name}_renamed", text)
        if other != text:
            before[path] = text
            path.write_text(other, encoding="utf-8")
    return before


def run(folder: Path, tests: list[str]) -> subprocess.CompletedProcess:
    """Run tests with the Lightning that is in a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", "--no-header"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *tests], env=environment, capture_output=True, text=True)


def main() -> None:
    """Exit with the names whose tests do not notice."""
    tests = {name: f"{TESTS / file}::{test}" for name, (_, _, file, test) in rows().items()}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "lightning"
        shutil.copytree(Path(lightning.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        control = run(Path(folder), sorted(set(tests.values())))
        if control.returncode != 0:
            sys.exit(f"fails without a change:\n{control.stdout[-5000:]}{control.stderr[-2000:]}")
        unnoticed = []
        for name, test in sorted(tests.items()):
            before = renamed(copy, name)
            failed = run(Path(folder), [test]).returncode != 0  # also where it cannot even be imported
            print(f"{name}: {'its test fails' if failed else 'NOBODY NOTICES'}", flush=True)
            unnoticed += [] if before and failed else [name]
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")
    sys.exit(f"no test notices another name of {', '.join(unnoticed)}" if unnoticed else 0)


if __name__ == "__main__":
    main()
