"""`lightrainer evaluate`: the metrics of a checkpoint, of an unchanged script, and nothing
written beside.
"""

import json
from pathlib import Path

import pytest

from helpers.processes.package_commands import NET, command
from helpers.processes.starting import forked_python

SCRIPT = """\
import sys, torch
from torch import nn
from LIBRARY import Trainer, TrainingArguments

"""
SCRIPT += NET
SCRIPT += """\
torch.manual_seed(int(sys.argv[2]))
data = [{"x": torch.randn(4), "labels": torch.tensor(index % 2)} for index in range(18)]
args = TrainingArguments(
    sys.argv[1], max_steps=4, eval_steps=2, save_steps=2, eval_strategy="steps", use_cpu=True, eval_aggregate="mean",
    load_best_model_at_end=True, report_to="none", disable_tqdm=True,
)
trainer = Trainer(
    Net(), args, train_dataset=data, eval_dataset={"a": data[:5], "b": data[5:]},
    compute_metrics=lambda prediction: {"count": len(prediction.label_ids)},
)
print("the script speaks")
if "only" in sys.argv:
    trainer.evaluate("b")
    assert "fail" not in sys.argv, "no more"
else:
    trainer.train()
    trainer.save_model("saved")
"""


def files(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module", params=["transformers", "lightrainer"])
def trained(request, tmp_path_factory):
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "train.py").write_text(SCRIPT.replace("LIBRARY", request.param))
    done = command("train.py", "out", 1, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def logged(folder, step):
    history = json.loads((folder / "out" / "checkpoint-4" / "trainer_state.json").read_text())[
        "log_history"
    ]
    entries = [entry for entry in history if entry["step"] == step]
    return {
        name: value
        for entry in entries
        for name, value in entry.items()
        if name.endswith(("_loss", "count"))
    }


def test_evaluate_equals_the_training_and_writes_nothing(trained):
    """Bit for bit, though the script starts with other weights; a table by default."""
    before = files(trained)
    done = command("evaluate", "--json", "out/checkpoint-2", "train.py", "out", 1, cwd=trained)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert logged(trained, 2).items() <= metrics.items()
    assert len(logged(trained, 2)) == 6
    assert metrics["epoch"] == pytest.approx(2 / 3)
    assert "the script speaks" in done.stderr
    done = command("evaluate", "out/checkpoint-4", "train.py", "out", 1, cwd=trained)
    table = dict(line.split() for line in done.stdout.splitlines())
    assert table["eval_mean_loss"] == str(logged(trained, 4)["eval_mean_loss"])
    assert logged(trained, 4) != logged(trained, 2)
    assert files(trained) == before


def test_evaluate_gives_the_weights_to_a_script_that_evaluates(trained):
    done = command(
        "evaluate", "--json", "out/checkpoint-2", "train.py", "out", 1, "only", cwd=trained
    )
    assert json.loads(done.stdout)["eval_loss"] == logged(trained, 2)["eval_b_loss"]
    assert "is passed to train.py" not in done.stderr


def test_evaluate_reports_a_script_that_fails_after_an_evaluation(trained):
    """Its metrics may be only those of the first of several evaluations."""
    words = ["--json", "out/checkpoint-2", "train.py", "out", 1, "only", "fail"]
    done = command("evaluate", *words, cwd=trained)
    assert done.returncode == 1
    assert "train.py failed (exit status 1)" in done.stderr
    assert json.loads(done.stdout)["eval_count"] == 13


def test_options_after_the_script_and_weights_without_an_epoch(trained):
    words = ["saved", "train.py", "out", 1, "only", "--json", "--launcher=sh", "--checkpoint"]
    done = command("evaluate", *words, cwd=trained)
    assert "eval_loss" in done.stdout
    assert "epoch" not in done.stdout
    assert (
        "lightrainer evaluate: --json, --launcher is passed to train.py, because it follows"
        in done.stderr
    )


def test_evaluate_in_two_processes(trained):
    launcher = f"{forked_python()} -m torch.distributed.run --nproc_per_node=2 --standalone"
    done = command(
        "evaluate",
        "--json",
        "--launcher",
        launcher,
        "out/checkpoint-2",
        "train.py",
        "x",
        1,
        cwd=trained,
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert metrics["eval_a_count"] == 5
    # other batches
    assert metrics["eval_b_loss"] == pytest.approx(logged(trained, 2)["eval_b_loss"], rel=0.2)
    assert not Path(trained, "x").exists()


BAD = {
    "nothing": ([], 2, "arguments are required: CHECKPOINT, SCRIPT\n"),
    "no checkpoint": (["out/checkpoint-3", "train.py"], 2, "out/checkpoint-3 is not a folder"),
    "no weights": ([".", "train.py"], 2, "it holds no weights"),
    "a script that fails": (
        ["out/checkpoint-2", "train.py"],
        1,
        "train.py failed (exit status 1)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(trained, name):
    words, code, message = BAD[name]
    done = command("evaluate", *words, cwd=trained)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
