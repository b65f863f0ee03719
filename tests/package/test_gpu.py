"""`make gpu`, rehearsed on the CPU; the list of code that only a GPU runs; and devices of new tensors."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu
from benchmarks.gpu import cases, page
from benchmarks.gpu.cuda_code import found, listed

ROOT = Path(__file__).resolve().parents[2]


def test_every_stage_runs_to_its_end_on_the_cpu(tmp_path):
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "gpu", "--device", "cpu", "--results", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {}
    for row in json.loads(results.read_text())["rows"]:
        outcomes.setdefault(row["stage"], set()).add(row["outcome"])
    assert outcomes.keys() == gpu.STAGES.keys()
    assert set.union(*outcomes.values()) == {"passed", "shown", "skipped"}
    assert all(outcomes[stage] - {"skipped"} for stage in outcomes.keys() - {"tests"})


def test_an_interrupted_stage_goes_on(tmp_path, monkeypatch, capfd):
    ran = []

    def run_case(stage, case, setting, seconds):
        ran.append(case)
        return {"stage": stage, "case": case, "outcome": "passed", "figures": {}, "note": "", "seconds": 40}

    machine = {"device": "cpu", "gpu": None, "commit": "one"}
    monkeypatch.setattr(gpu, "run_case", run_case)
    monkeypatch.setattr(gpu, "probe", lambda setting: machine)
    command = ["--device", "cpu", "--results", str(tmp_path / "results.json"), "--minutes", "1", "checkpoints"]
    assert [gpu.main(command) for _ in range(3)] == [3, 3, 0]
    assert "the same command goes on" in capfd.readouterr().out
    assert len(ran) == len(set(ran)) == 5
    machine["commit"] = "two"
    gpu.main(command)
    assert len(ran) == 7
    assert (tmp_path / "results.one.json").exists()


def test_a_case_that_fails_is_a_row():
    outcome = cases._outcome("trace", "unknown", cases.Setting("cpu"))
    assert (outcome["passed"], "KeyError" in outcome["note"]) == (False, True)


def test_page_and_readme_say_what_ran():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "python -m benchmarks gpu --publish writes it"
    assert page.readme_row() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_all_code_for_cuda_is_listed():
    rows = listed()
    assert found() == rows.keys(), "docs/develop/gpu.md lists them"
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for shown in rows.values():
        stage, _, test = shown.partition(": ")
        assert stage in gpu.STAGES or (ROOT / stage).is_dir(), shown
        assert f"def {test}" in tests, shown
