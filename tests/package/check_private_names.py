"""Show that each private name of another library has a test: rename it in the library, and its test has to fail.

    python tests/package/check_private_names.py [LIBRARY...]

Lightning is renamed in a copy, the others as they are imported (`renamed_names.py`). The library itself runs as before
under the other name; only this package's use of it does not. `make test-private-names` runs this; it takes minutes.
Names that a library defines in C or has as folders, and libraries that are not installed, are left out and listed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning
from test_private_names import OTHER_ROW, OTHERS, ROOT, TESTS, rows

LEFT_OUT = ("_profiler_enabled", "_amp_foreach", "_scaled_dot_product", "_checkpoint")


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


def of_others(libraries: list[str]) -> list[str]:
    """Return the names of other libraries whose tests pass under another name."""
    unnoticed = []
    for library, name, _, file, test in OTHER_ROW.findall(OTHERS.read_text(encoding="utf-8")):
        if libraries and library not in libraries:
            continue
        if name.startswith(LEFT_OUT):
            print(f"{library} {name}: in C, or a folder: not renamed", flush=True)
            continue
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "renamed_names"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
        environment["RENAMED"] = f"{library}:{name}"
        command += ["-W", "default", "--tb=line", "--no-header", f"{ROOT / file}::{test}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
        passed, failed = re.search(r"\d+ passed", done.stdout), done.returncode not in (0, 5)
        said = "its test fails" if failed else "NOT NOTICED" if passed else "its test is skipped here"
        print(f"{library} {name}: {said}", flush=True)
        unnoticed += [name] if said == "NOT NOTICED" else []
    return unnoticed


def of_lightning() -> list[str]:
    """Return the names of Lightning whose tests pass under another name."""
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
            print(f"{name}: {'its test fails' if failed else 'NOT NOTICED'}", flush=True)
            unnoticed += [] if before and failed else [name]
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")
    return unnoticed


def main(libraries: list[str]) -> None:
    """Exit with the names whose tests pass without them."""
    unnoticed = of_others(libraries) + (of_lightning() if not libraries or "lightning" in libraries else [])
    sys.exit(f"no test fails without {', '.join(unnoticed)}" if unnoticed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
