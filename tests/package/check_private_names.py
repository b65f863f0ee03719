"""Show that each private name of another library has a test: rename it in the library, and its test
has to fail.

    python tests/package/check_private_names.py [LIBRARY...]

Names are replaced in the source while a library is imported (`renamed_names.py`). The library
itself runs as before under the other name; only this package's use of it does not.
`make test-private-names` runs this; it takes minutes. Names that a library defines in C or has as
folders, and libraries that are not installed, are left out and listed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from test_private_names import OTHER_ROW, OTHERS, ROOT, TESTS, rows

LEFT_OUT = ("_scaled_dot_product",)


def said_without(library: str, name: str, test: str) -> str:
    """Return how a test ends where a library calls a name otherwise."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "helpers.scripts.renamed_names",
        "-W",
        "default",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    environment["RENAMED"] = f"{library}:{name}"
    command += ["--tb=line", "--no-header", test]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, 5):
        return "its test fails"
    return "NOT NOTICED" if re.search(r"\d+ passed", done.stdout) else "its test is skipped here"


def main(libraries: list[str]) -> None:
    """Exit with the names whose tests pass without them."""
    others = OTHER_ROW.findall(OTHERS.read_text(encoding="utf-8"))
    entries = [(library, name, f"{ROOT / file}::{test}") for library, name, _, file, test in others]
    entries += [
        ("lightning", name, f"{TESTS / file}::{test}")
        for name, (_, _, file, test) in rows().items()
    ]
    unnoticed = []
    for library, name, test in entries:
        if libraries and library not in libraries:
            continue
        left_out = name.startswith(LEFT_OUT) and library != "lightning"
        outcome = (
            "in C, or a folder: not renamed" if left_out else said_without(library, name, test)
        )
        print(f"{library} {name}: {outcome}", flush=True)
        unnoticed += [name] if outcome == "NOT NOTICED" else []
    sys.exit(f"no test fails without {', '.join(unnoticed)}" if unnoticed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
