"""`lightrainer compare`: a script with the reference and with ours, and what differs."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes.package_commands import NET, command
from lightrainer.tools.compare import runs
from lightrainer.tools.compare.differences import (
    CONTENT,
    FILES,
    LOGS,
    METRICS,
    WEIGHTS,
)
from lightrainer.tools.compare.differences import compare as differences_of
from lightrainer.tools.compare.report import as_dict, as_text
from lightrainer.tools.compare.results import Results, read_content

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
COMMON = (
    "--do_train --do_eval --eval_strategy steps --eval_steps 3 --save_steps 3 --logging_steps 1 "
    "--max_steps 6"
)
COMMON += " --learning_rate 5e-3 --report_to none --use_cpu"
SMALL = """\
import os, sys, torch, transformers
from torch import nn

"""
SMALL += NET
SMALL += """\
%s
data = [{"x": torch.randn(4), "labels": torch.tensor(index %% 2)} for index in range(16)]
args = transformers.TrainingArguments("fixed/here", max_steps=3, logging_steps=1, use_cpu=True, report_to="none")
transformers.Trainer(Net(), args, train_dataset=data).train()
"""

needs_reference = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)


def compare(*words, cwd):
    """Both sides of it are forked, too."""
    return command("compare", *words, cwd=cwd, HF_HUB_OFFLINE="1", COLUMNS="80")


def summary(folder):
    return json.loads((folder / runs.RESULT_FILE).read_text())


def rows(said):
    return {row["what"]: row for row in said["compared"]}


@needs_reference
def test_compare_usual_script_is_equal_on_both_sides(tmp_path):
    """Every metric, logged number, weight, text and file."""
    name = "text_classification"
    done = compare(SCRIPTS / f"{name}.py", "--output_dir", "out", *COMMON.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "Nothing differs." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))
    report = summary(tmp_path / "compare" / name)
    groups = rows(report)
    assert tuple(groups) == (METRICS, LOGS, WEIGHTS, FILES, CONTENT)
    for group in groups:
        assert groups[group]["compared"] > 5
        assert groups[group]["equal"] == groups[group]["compared"]
    assert groups[LOGS]["compared"] >= 6 * 3
    assert [side["version"].split()[0] for side in report["sides"]] == [
        "transformers",
        "lightrainer",
    ]
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("*.pt.partial")) + list(
        (tmp_path / "compare" / name).rglob("weights-*")
    )
    assert report["differences"] == []
    out = tmp_path / "compare" / name / "lightrainer" / "work" / "out"
    assert (out / "checkpoint-3" / "_manifest.json").exists()


@needs_reference
def test_compare_reports_the_gradient_under_accumulation(tmp_path):
    words = [*COMMON.split(), "--gradient_accumulation_steps", "2"]
    done = compare(SCRIPTS / "own_model.py", "--output_dir=out", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    assert "docs/user/migrate.md lists the intended differences." in done.stdout
    groups = rows(summary(tmp_path / "compare" / "own_model"))
    assert groups[WEIGHTS]["largest"] > 0
    assert groups[WEIGHTS]["equal"] < groups[WEIGHTS]["compared"]


@needs_reference
def test_compare_reports_differences(tmp_path):
    """The negative control: weights that come from `os.urandom`, in a script with a fixed output
    folder.
    """
    (tmp_path / "drawing.py").write_text(
        SMALL % "torch.manual_seed(int.from_bytes(os.urandom(4), 'big'))"
    )
    done = compare("--folder", "there", "drawing.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "uses random\nnumbers without a seed" in done.stdout
    groups = rows(summary(tmp_path / "there"))
    assert groups[WEIGHTS]["compared"] - groups[WEIGHTS]["equal"] == 2
    assert groups[LOGS]["equal"] < groups[LOGS]["compared"]
    weights = [
        entry for entry in summary(tmp_path / "there")["differences"] if entry["what"] == WEIGHTS
    ]
    assert min(entry["largest"] for entry in weights) > 0
    assert not (tmp_path / "fixed").exists()


def test_compare_unseeded_draws_are_equal_on_both_sides(tmp_path):
    """From Python's and NumPy's generators, and the order of a set."""
    draw = (
        "import random, numpy; print(random.random(), numpy.random.random(), {'a', 'b', 'c', 'd', "
        "'e'})"
    )
    drawn = {
        subprocess.check_output([sys.executable, "-c", draw], env=runs._environment(side, tmp_path))
        for side in (runs.REFERENCE, runs.LIGHTRAINER, runs.REFERENCE)
    }
    assert len(drawn) == 1


@needs_reference
def test_compare_script_finds_its_files_and_changes_none(tmp_path):
    """It lists its output by the name it gave, and writes to what there was, by Python and by
    native code.
    """
    theirs = {
        "model/weights.pt": "of the user",
        "notes/log.txt": "begun\n",
        "big/data.txt": "12",
        "big/own.txt": "3",
    }
    for name, text in theirs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "elsewhere").symlink_to("notes")
    (tmp_path / "helper.py").write_text("seed = 5")
    start = "import helper\n"
    start += "torch.manual_seed(helper.seed + len(open('big/data.txt').read()))"
    end = """\
open("notes/log.txt", "a").write("trained")
open("elsewhere/more.txt", "w").write("more")
torch.save({}, "model/weights.pt")
os.remove("helper.py")
assert "checkpoint-3" in os.listdir("fixed/here")
assert os.path.realpath(__file__).startswith(os.getcwd())
"""
    (tmp_path / "listing.py").write_text(SMALL % start + end)
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    done = compare("--link", "big", "listing.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert before == {path: path.read_text() for path in before}
    side = tmp_path / "compare" / "listing"
    assert {path.name for path in tmp_path.iterdir()} == {
        *(name.split("/")[0] for name in theirs)
    } | {*("elsewhere", "helper.py", "listing.py", "compare")}
    for work in (side / "reference" / "work", side / "lightrainer" / "work"):
        left = {path.name for path in work.iterdir()} - {"__pycache__"}
        assert left == {"elsewhere", "fixed", "model", "notes", "big", "listing.py", "compare"}
        assert (work / "big").is_symlink()
        assert (work / "notes" / "log.txt").read_text() == "begun\ntrained"


@needs_reference
def test_compare_script_in_another_folder_runs_in_a_copy_of_the_working_folder(tmp_path):
    """Also where the shell names the working folder."""
    working_folder, scripts = tmp_path / "here", tmp_path / "scripts"
    working_folder.mkdir()
    scripts.mkdir()
    (working_folder / "size.txt").write_text("16")
    end = """\
for file in (open("size.txt", "a"), open(os.environ["PWD"] + "/size.txt", "a")):
    file.write("# changed")
    file.close()
assert "checkpoint-3" in os.listdir("fixed/here")
args.max_steps = 5
transformers.Trainer(Net(), args, train_dataset=data).train(resume_from_checkpoint=True)
"""
    script = scripts / "away.py"
    script.write_text(SMALL % "torch.manual_seed(0)" + end)
    done = compare("../scripts/away.py", cwd=working_folder)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    differences = summary(working_folder / "compare" / "away")["differences"]
    assert {entry["name"].rpartition(" ")[2] for entry in differences} == {"train_loss"}
    assert (working_folder / "size.txt").read_text() == "16"
    work = working_folder / "compare" / "away" / "reference" / "work"
    assert (work / "size.txt").read_text() == "16# changed# changed"


def test_compare_refuses_a_large_working_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LIMIT", 2000)
    source = tmp_path / "mine"
    (source / "data").mkdir(parents=True)
    for name in ("data/first", "data/second", "small"):
        (source / name).write_bytes(bytes(500 if name == "small" else 1500))
    script = runs.Script(path=source / "script.py", working_folder=source)
    with pytest.raises(runs.CompareError, match=r"It stopped at .*--link"):
        runs.copy_working_folder(script, tmp_path / "copy")
    script = dataclasses.replace(script, linked=[source / "data" / "first"])
    runs.copy_working_folder(script, tmp_path / "linked")
    names = {path.name for path in (tmp_path / "linked").rglob("*")}
    assert names == {"data", "first", "second", "small"}
    assert (tmp_path / "linked" / "data" / "first").is_symlink()


def test_compare_leaves_out_special_tokens_and_measurements(tmp_path):
    """transformers before 5.23 removes special tokens from the configuration of a model."""
    file = tmp_path / "config.json"
    file.write_text('{"eos_token_id": 3, "a": {"train_runtime": 1, "sizes": [4, null]}, "b": []}')
    run = runs.Run(side="reference", folder=tmp_path, seconds=1.0)
    side = Results(run=run, version="transformers 5.3.0", files={"config.json": file})
    assert read_content(side, "config.json") == {"a.sizes.0": 4, "a.sizes.1": None, "b": []}


def test_compare_reports_mistakes(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "script.py").touch()
    done = compare("nowhere.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "lightrainer compare: The script nowhere.py does not exist.\n",
    )
    with pytest.raises(runs.CompareError, match="has files that are not from a comparison"):
        runs.empty_folder(tmp_path / "full")


@needs_reference
def test_compare_reports_a_script_that_fails_or_trains_nothing(tmp_path):
    (tmp_path / "failing.py").write_text(
        "print('so far so good')\nraise ValueError('no such corpus')\n"
    )
    done = compare("failing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "The script failed with the reference (exit status 1)" in done.stderr
    assert "ValueError: no such corpus" in done.stderr
    (tmp_path / "idle.py").write_text("print('nothing')\n")
    done = compare("idle.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "without calling train, evaluate or predict" in done.stderr


def test_counts_are_of_values_also_in_files(tmp_path):
    sides = []
    for side, numbers in (("reference", range(50)), ("lightrainer", range(50, 100))):
        folder = tmp_path / side
        folder.mkdir()
        (folder / "norms.json").write_text(json.dumps(list(numbers)))
        run = runs.Run(side=side, folder=folder, seconds=1.0)
        files = {"norms.json": folder / "norms.json"}
        sides.append(Results(run=run, version="transformers 5.3.0", files=files))
    # A value that is null is another one than a value that is missing.
    sides[0].metrics = {"train: score": None}
    comparisons = differences_of(*sides)
    assert rows(as_dict(sides, comparisons))[METRICS]["equal"] == 0
    row = rows(as_dict(sides, comparisons))[CONTENT]
    assert (row["compared"], row["equal"], row["largest"]) == (50, 0, 50)
    assert "... and 39 more" in as_text(sides, comparisons)
