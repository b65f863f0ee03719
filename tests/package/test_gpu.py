"""`make gpu`, rehearsed on the CPU; the list of code that only a GPU runs; and devices of new
tensors.
"""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu
from benchmarks.gpu import page
from benchmarks.gpu.cuda_code import found, listed

ROOT = Path(__file__).resolve().parents[2]


def test_gpu_stages_run_on_the_cpu(tmp_path):
    results = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "gpu",
        "--device",
        "cpu",
        "--results",
        str(results),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {}
    for row in json.loads(results.read_text())["rows"]:
        outcomes.setdefault(row["stage"], set()).add(row["outcome"])
    assert outcomes.keys() == gpu.STAGES.keys()
    assert set.union(*outcomes.values()) == {"passed", "shown", "skipped"}
    assert all(outcomes[stage] - {"skipped"} for stage in outcomes.keys() - {"tests"})


def test_page_and_readme_say_what_ran():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), (
        "python -m benchmarks gpu --publish writes it"
    )
    assert page.readme_row() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_gpu_page_lists_all_cuda_code():
    rows = listed()
    assert found() == rows.keys(), "docs/develop/gpu.md lists them"
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    for shown in rows.values():
        stage, _, test = shown.partition(": ")
        assert stage in gpu.STAGES or (ROOT / stage).is_dir(), shown
        assert f"def {test}" in tests, shown
