"""Metrics of two sets, their mean, and a spike of the loss in one of two processes."""

import json
from pathlib import Path

import pytest
from starting import finished_ranks


def test_both_processes_choose_the_same_best_model_and_leave_out_the_same_step(tmp_path):
    finished_ranks(Path(__file__).with_name("sets_script.py"), str(tmp_path), log=tmp_path / "log.txt", seconds=120)
    one, other = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one == other
    assert one["skipped"] == [5]
    each = [
        [entry[f"eval_{name}_accuracy"] for entry in one["logs"] if f"eval_{name}_accuracy" in entry] for name in "ab"
    ]
    means = [entry["eval_mean_accuracy"] for entry in one["logs"] if "eval_mean_accuracy" in entry]
    assert means == pytest.approx([(left + right) / 2 for left, right in zip(*each, strict=True)])
    assert (one["best"], one["step"]) == (max(means), means.index(max(means)) + 1)
