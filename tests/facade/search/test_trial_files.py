"""Remove what a pruned trial wrote, and nothing else."""

import json
from types import SimpleNamespace

import pytest
from tiny import files

from lightrainer.facade.arguments import sweep_trial
from lightrainer.facade.search import sweep_reports
from lightrainer.facade.search.trial_folders import files_below, remove_all_but


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def test_only_what_is_new_is_removed(tmp_path):
    folder, elsewhere = tmp_path / "run-0", tmp_path / "elsewhere"
    write(folder, "notes.txt", "deep/er/notes.txt")
    write(elsewhere, "precious.txt")
    before = files_below(folder)
    write(folder, "deep/er/new.txt", "deep/new/new.txt", "checkpoint-1/optimizer.pt")
    (folder / "link").symlink_to(elsewhere)
    remove_all_but(folder, before, made=False)
    assert files(folder) == ["deep/er/notes.txt", "notes.txt"]
    assert files_below(folder) == before
    assert files(elsewhere) == ["precious.txt"]


@pytest.mark.parametrize("made", [True, False])
def test_a_folder_that_was_made_goes(tmp_path, made):
    write(tmp_path / "run-0", "checkpoint-1/optimizer.pt")
    remove_all_but(tmp_path / "run-0", (), made=made)
    assert (tmp_path / "run-0").exists() is not made


@pytest.mark.parametrize("retried", [False, True])
def test_a_trial_of_a_sweep_notes_what_was_there(tmp_path, monkeypatch, retried):
    """A retry in a process that knows nothing of the first one: the checkpoints that lie there are the trial's."""
    folder, result = tmp_path / "out" / "run-0", tmp_path / "run-0.json"
    about = {"storage": "", "study": "", "number": 0, "values": {}, "metrics": [], "run_name": "run-0"}
    about |= {"result": str(result), "remove_pruned": True, "resume": retried}
    monkeypatch.setenv(sweep_trial.VARIABLE, json.dumps(about))
    write(folder, "notes.txt", "checkpoint-1/optimizer.pt")

    trains = SimpleNamespace(args=SimpleNamespace(output_dir=str(folder)), is_world_process_zero=lambda: True)
    sweep_reports.begin_training(trains)
    write(folder, "checkpoint-2/optimizer.pt")
    sweep_reports.begin_training(trains)
    sweep_reports.remove_written_files(json.loads(result.read_text()))
    assert files(folder) == ([] if retried else ["checkpoint-1/optimizer.pt"]) + ["notes.txt"]
