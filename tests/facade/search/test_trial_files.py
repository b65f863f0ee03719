"""Remove what a pruned trial wrote, and nothing else."""

import json
from types import SimpleNamespace

import pytest
from tiny import files

from lightrainer.facade.arguments import sweep_trial
from lightrainer.facade.search import sweep_reports
from lightrainer.facade.search.trial_folders import files_below, remove_all_but


def test_only_what_is_new_is_removed(tmp_path):
    folder, elsewhere = tmp_path / "run-0", tmp_path / "elsewhere"
    for place in (folder / "deep", elsewhere):
        place.mkdir(parents=True)
        (place / "precious.txt").touch()
    before = files_below(folder)
    (folder / "deep" / "new").mkdir()
    (folder / "deep" / "new" / "new.txt").touch()
    (folder / "link").symlink_to(elsewhere)
    remove_all_but(folder, before, made=False)
    assert files_below(folder) == before
    assert files(elsewhere) == ["precious.txt"]
    remove_all_but(folder, (), made=True)
    assert not folder.exists()


@pytest.mark.parametrize("retried", [False, True])
def test_a_trial_of_a_sweep_notes_what_was_there(tmp_path, monkeypatch, retried):
    """A retry in a process that knows nothing of the first one: the checkpoints that lie there are the trial's."""
    folder, result = tmp_path / "out" / "run-0", tmp_path / "run-0.json"
    about = {"storage": "", "study": "", "number": 0, "values": {}, "metrics": [], "run_name": "run-0"}
    about |= {"result": str(result), "remove_pruned": True, "resume": retried}
    monkeypatch.setenv(sweep_trial.VARIABLE, json.dumps(about))
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoint-1" / "optimizer.pt").touch()
    (folder / "notes.txt").touch()
    trains = SimpleNamespace(args=SimpleNamespace(output_dir=str(folder)), is_world_process_zero=lambda: True)
    sweep_reports.begin_training(trains)
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "optimizer.pt").touch()
    sweep_reports.begin_training(trains)
    sweep_reports.remove_written_files(json.loads(result.read_text()))
    assert files(folder) == ([] if retried else ["checkpoint-1/optimizer.pt"]) + ["notes.txt"]
