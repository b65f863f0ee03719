"""Stage `tests`: the files with tests that are marked `gpu`."""

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from .cases import Outcome, Setting

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"mark\.gpu|import .*\bdevices\b")


def cases(setting: Setting) -> dict[str, Callable[[], Outcome]]:
    """Return a case for each file; a rehearsal takes one."""
    files = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARKED.search(path.read_text(encoding="utf-8"))
    ]
    return {
        str(path.relative_to(ROOT)): functools.partial(run, path)
        for path in (files[:1] if setting.small else files)
    }


def run(path: Path) -> Outcome:
    """Run the marked tests of a file; where there is no GPU they are skipped."""
    report = ROOT / "build" / "gpu" / f"{path.stem}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        f"--junitxml={report}",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 5:
        return {"skipped": "none of its tests is marked"}
    if not report.exists():
        return {"passed": False, "note": (done.stdout + done.stderr)[-500:]}
    suite = next(ElementTree.parse(report).iter("testsuite"))
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    if done.returncode:
        return {"passed": False, "figures": count, "note": done.stdout[-500:]}
    if count["skipped"] == count["tests"]:
        return {"skipped": f"{count['tests']} tests need a GPU"}
    return {"passed": True, "figures": count}
