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
    GROUPS,
    LOGS,
    METRICS,
    WEIGHTS,
    Difference,
)
from lightrainer.tools.compare.differences import compare as differences_of
from lightrainer.tools.compare.findings import Findings
from lightrainer.tools.compare.known import find_reason
from lightrainer.tools.compare.verdict import Verdict

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
    return json.loads((folder / runs.MARK).read_text())


def rows(said):
    return {row["what"]: row for row in said["compared"]}


@needs_reference
def test_compare_usual_script_is_equal_on_both_sides(tmp_path):
    """Every metric, logged number, weight and text; what differs are files, each with its
    reason.
    """
    name = "text_classification"
    done = compare(SCRIPTS / f"{name}.py", "--output_dir", "out", *COMMON.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "Nothing unexplained differs." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))
    said = summary(tmp_path / "compare" / name)
    found = rows(said)
    assert tuple(found) == GROUPS
    for group in GROUPS:
        assert found[group]["compared"] > 5
        assert group == FILES or found[group]["equal"] == found[group]["compared"]
    assert found[LOGS]["compared"] >= 6 * 3
    assert [side["version"].split()[0] for side in said["sides"]] == [
        "transformers",
        "lightrainer",
    ]
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("*.pt.partial")) + list(
        (tmp_path / "compare" / name).rglob("weights-*")
    )
    assert {one["what"] for one in said["differences"]} == {FILES}
    assert all(one["known"] for one in said["differences"])


@needs_reference
def test_compare_explains_the_gradient_under_accumulation(tmp_path):
    words = [*COMMON.split(), "--gradient_accumulation_steps", "2"]
    done = compare(SCRIPTS / "own_model.py", "--output_dir=out", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the gradient under accumulation" in done.stdout
    assert "--gradient_accumulation_steps 1" in done.stdout
    found = rows(summary(tmp_path / "compare" / "own_model"))
    assert min(found[WEIGHTS]["known"], found[WEIGHTS]["largest"], found[LOGS]["known"]) > 0


@needs_reference
def test_unexplained_differences_are_reported(tmp_path):
    """The negative control: weights that come from `os.urandom`, in a script with a fixed output
    folder.
    """
    (tmp_path / "drawing.py").write_text(
        SMALL % "torch.manual_seed(int.from_bytes(os.urandom(4), 'big'))"
    )
    done = compare("--again", "--folder", "there", "drawing.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "have no known reason. Two runs of the reference differ as well" in " ".join(
        done.stdout.split()
    )
    found = rows(summary(tmp_path / "there"))
    assert found[WEIGHTS]["unexplained"] == 2
    assert found[LOGS]["unexplained"] > 0
    weights = [one for one in summary(tmp_path / "there")["differences"] if one["what"] == WEIGHTS]
    assert min(one["largest"] for one in weights) > 0
    assert {one["known"] for one in weights} == {None}
    assert not (tmp_path / "fixed").exists()


def test_compare_unseeded_draws_are_equal_on_both_sides(tmp_path):
    """From Python's and NumPy's generators, and the order of a set."""
    draw = (
        "import random, numpy; print(random.random(), numpy.random.random(), {'a', 'b', 'c', 'd', "
        "'e'})"
    )
    script = runs.Script(
        path=tmp_path / "script.py",
        working_folder=tmp_path,
        folders=[runs.WorkingFolder(path=tmp_path)],
        seed=7,
    )
    drawn = {
        subprocess.check_output(
            [sys.executable, "-c", draw], env=runs._environment(script, side, tmp_path)
        )
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
    (tmp_path / "unneeded").mkdir()
    (tmp_path / "elsewhere").symlink_to("notes")
    (tmp_path / "helper.py").write_text("seed = 5")
    start = "import helper\nassert not os.path.exists('unneeded')\n"
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
    done = compare("--link", "big", "--leave-out", "unneeded", "listing.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert before == {path: path.read_text() for path in before}
    side = tmp_path / "compare" / "listing"
    assert {path.name for path in tmp_path.iterdir()} == {
        *(name.split("/")[0] for name in theirs)
    } | {*("unneeded", "elsewhere", "helper.py", "listing.py", "compare")}
    for work in (side / "reference" / "work", side / "lightrainer" / "work"):
        left = {path.name for path in work.iterdir()} - {"__pycache__"}
        assert left == {"elsewhere", "fixed", "model", "notes"}
        assert (work / "notes" / "log.txt").read_text() == "begun\ntrained"


@needs_reference
@pytest.mark.parametrize("root", [True, False])
def test_compare_script_in_another_folder_changes_nothing(tmp_path, root):
    """Nor where the command line or the shell name the working folder; what is reached by `..`
    comes with `--root`.
    """
    here, scripts = tmp_path / "here", tmp_path / "scripts"
    here.mkdir()
    scripts.mkdir()
    (here / "size.txt").write_text("16")
    end = """\
assert open(sys.argv[1]).read() == "16"
for folder in (sys.argv[1], os.environ["PWD"] + "/size.txt", __file__):
    with open(folder, "a") as file:
        file.write("# changed")
assert "checkpoint-3" in os.listdir("fixed/here")
args.max_steps = 5
transformers.Trainer(Net(), args, train_dataset=data).train(resume_from_checkpoint=True)
"""
    end += "assert os.path.exists('../scripts/away.py')\n" * root
    script = scripts / "away.py"
    script.write_text(SMALL % "torch.manual_seed(0)" + end)
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    options = ["--root", ".."] if root else []
    done = compare(*options, "../scripts/away.py", str(here / "size.txt"), cwd=here)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "train_loss after a resumption" in done.stdout
    assert before == {path: path.read_text() for path in before}
    assert {path.name for path in tmp_path.iterdir()} == {"here", "scripts"}
    work = here / "compare" / "away" / "reference" / "work"
    assert (
        work / "here" / "size.txt" if root else work / "size.txt"
    ).read_text() == "16# changed# changed"


@needs_reference
def test_compare_reports_what_the_copy_lacks(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "up.py").write_text("open('../data/none.txt')")
    done = compare("up.py", cwd=tmp_path / "here")
    assert done.returncode == 2
    assert (
        f"It ran in a copy of {tmp_path / 'here'}. To copy a folder above it, pass --root."
        in done.stderr
    )


def test_compare_refuses_a_large_working_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LIMIT", 2000)
    source = tmp_path / "mine"
    (source / "data").mkdir(parents=True)
    for name in ("data/first", "data/second", "small"):
        (source / name).write_bytes(bytes(500 if name == "small" else 1500))
    folder = runs.WorkingFolder(path=source)
    with pytest.raises(
        runs.CompareError, match=r"The largest entries are data .*--link.*--leave-out"
    ):
        folder.copy(tmp_path / "copy")
    dataclasses.replace(folder, linked={source / "data" / "first"}).copy(tmp_path / "linked")
    assert sorted(path.name for path in (tmp_path / "linked").rglob("*")) == [
        "data",
        "first",
        "second",
        "small",
    ]
    dataclasses.replace(folder, left_out={source / "data"}).copy(tmp_path / "left_out")
    assert [path.name for path in (tmp_path / "left_out").rglob("*")] == ["small"]


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


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (LOGS, "step 1: loss"),
        (METRICS, "train: train_loss"),
        (CONTENT, "all_results.json train_loss"),
    ],
)
def test_sum_of_losses_is_known_only_with_the_factor_of_the_accumulation(group, name):
    facts = {
        "version": "transformers 5.3.0",
        "gradient_accumulation_steps": 4,
        "gradient_norms": (0.5, 0.5),
    }
    name_of_reason = "the logged loss of a mean under accumulation"
    assert (
        find_reason(Difference(group=group, name=name, reference=4.4, lightrainer=1.1), facts).name
        == name_of_reason
    )
    for reference, ours in ((1.1, 4.4), (2.2, 1.1), (1.1, 1.2)):
        assert (
            find_reason(
                Difference(group=group, name=name, reference=reference, lightrainer=ours), facts
            )
            is None
        )
    evaluated = Difference(group=LOGS, name="step 1: eval_loss", reference=4.4, lightrainer=1.1)
    assert find_reason(evaluated, facts) is None


def test_counts_are_of_values_also_in_files(tmp_path):
    sides = []
    for side, numbers in (("reference", range(50)), ("lightrainer", range(50, 100))):
        folder = tmp_path / side
        folder.mkdir()
        (folder / "norms.json").write_text(json.dumps(list(numbers)))
        run = runs.Run(side=side, folder=folder, seconds=1.0)
        files = {"norms.json": folder / "norms.json"}
        sides.append(Findings(run=run, version="transformers 5.3.0", arguments={}, files=files))
    (row,) = [
        row
        for row in Verdict(
            script="s",
            script_arguments=[],
            reference=sides[0],
            lightrainer=sides[1],
            comparisons=differences_of(*sides),
        ).rows()
        if row["what"] == CONTENT
    ]
    assert (row["compared"], row["equal"], row["unexplained"]) == (50, 0, 50)


def test_compare_known_difference_explains_only_its_effects():
    weight = Difference(group=WEIGHTS, name="layer.weight", size=0.1)
    old = {
        "version": "transformers 5.3.0",
        "gradient_accumulation_steps": 4,
        "gradient_norms": (0.5, 2.0),
    }
    assert find_reason(weight, old).name == "the gradient under accumulation"
    for norms in ((0.5, 0.5), (2.0, 0.5), (0.5, 1.0), (None, None)):
        assert find_reason(weight, {**old, "gradient_norms": norms}) is None
    assert find_reason(weight, {**old, "version": "transformers 5.23.0"}) is None
    assert find_reason(weight, {**old, "gradient_accumulation_steps": 1}) is None
    manifest = Difference(group=FILES, name="checkpoint-3/_manifest.json", only_in="lightrainer")
    assert find_reason(manifest, {}) is not None
    assert find_reason(Difference(group=FILES, name=manifest.name, only_in="reference"), {}) is None
    assert (
        find_reason(
            Difference(group=FILES, name="checkpoint-3/model.safetensors", only_in="lightrainer"),
            {},
        )
        is None
    )
    loss = Difference(group=CONTENT, name="all_results.json train_loss", size=0.1)
    assert (
        find_reason(loss, {"resume_from_checkpoint": "out", "version": "transformers 5.3.0"})
        is not None
    )
    assert (
        find_reason(Difference(group=LOGS, name="step 1: loss"), {"resume_from_checkpoint": "out"})
        is None
    )
