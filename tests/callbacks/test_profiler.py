"""The profile of some steps: parts that add up, files, and a command."""

import json
import time

import pytest
import torch

from helpers.callbacks.small_training import make_trainer, sentences
from helpers.processes.package_commands import command
from lightrainer import ProfilerCallback, TrainerCallback


def test_profiler_separates_the_parts_of_a_step(tmp_path, capsys):
    """A slow collator is `data`, the longest part is named first, files are written, hooks are
    removed, and the training continues.
    """

    def slow(samples):
        time.sleep(0.02)
        return torch.utils.data.default_collate(samples)

    callback = ProfilerCallback(wait=1, warmup=1, active=4)
    trainer = make_trainer(
        tmp_path, [callback], logging_steps=2, save_strategy="steps", save_steps=4
    )
    trainer.data_collator = slow
    begin = time.perf_counter()
    trainer.train()
    took = time.perf_counter() - begin
    assert trainer.state.global_step == 16
    parts = callback.seconds
    assert set(parts) == {
        "data",
        "forward",
        "backward",
        "optimizer",
        "callbacks",
        "logging",
        "saving",
    }
    assert 4 * 0.02 < parts["data"] < sum(parts.values()) < took
    assert not trainer.model._forward_hooks
    assert not trainer.model._forward_pre_hooks

    # Which part is the longest depends on the machine: a checkpoint takes long on a slow disk.
    rows = capsys.readouterr().out.split("4 steps, each:\n")[1].splitlines()
    names_in_table = [row.split()[0] for row in rows[: len(parts)]]
    assert names_in_table == sorted(parts, key=parts.get, reverse=True)
    trace = json.loads((tmp_path / "profile" / "trace.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert {f"ProfilerStep#{step}" for step in range(2, 6)} <= names
    assert "ProfilerStep#6" not in names
    table = (tmp_path / "profile" / "profile.txt").read_text()
    assert all(part in table for part in parts)


def test_numbers_are_those_of_a_training_without_it(tmp_path):
    """Bit for bit."""
    runs = []
    for callbacks in ([], [ProfilerCallback(0, 1, 3)]):
        torch.manual_seed(0)
        runs.append(make_trainer(tmp_path / str(len(callbacks)), callbacks, logging_steps=1))
        runs[-1].train()
    plain, profiled = (
        [entry.get("loss") for entry in trainer.state.log_history] for trainer in runs
    )
    assert plain == profiled


@pytest.mark.parametrize(("active", "steps"), [(3, 5), (100, 16)])
def test_profiler_may_end_the_training_or_be_ended_by_it(tmp_path, active, steps):
    """Less than all is written of a training that was too short; the last step read ahead of is
    finished.
    """
    trainer = make_trainer(tmp_path, [ProfilerCallback(1, 1, active, stop=True)], data=sentences())
    trainer.train()
    assert abs(trainer.state.global_step - steps) <= 1
    assert (tmp_path / "profile" / "trace.json").exists()


class FailsAtStep(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise RuntimeError("step failed")


def test_profiler_is_stopped_by_a_training_that_fails(tmp_path):
    """With a running profiler the process would crash at its exit."""
    profiler = ProfilerCallback(0, 1, 8)
    trainer = make_trainer(tmp_path, [profiler, FailsAtStep(3)])
    with pytest.raises(RuntimeError, match="step failed"):
        trainer.train()
    assert not torch.autograd._profiler_enabled()
    assert not trainer.model._forward_hooks

    # The same callback profiles another training.
    trainer.remove_callback(FailsAtStep)
    trainer.train()
    assert (tmp_path / "profile" / "trace.json").exists()


def test_profiler_starts_again_in_a_training_that_starts_over(tmp_path):
    """As with `auto_find_batch_size`: the steps before do not count."""
    profiler = ProfilerCallback(0, 1, 3)

    class StartsOver(TrainerCallback):
        is_done = False

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2 and not self.is_done:
                self.is_done = True
                raise torch.OutOfMemoryError("out of memory")

    trainer = make_trainer(tmp_path, [profiler, StartsOver()], auto_find_batch_size=True)
    trainer.train()
    assert not trainer.model._forward_hooks
    table = (tmp_path / "profile" / "profile.txt").read_text()
    assert table.startswith("3 steps")


def test_a_training_without_a_profiled_step_warns(tmp_path, caplog):
    """A profile that was asked for, and that no file shows, is not left out silently."""
    make_trainer(tmp_path, [ProfilerCallback(wait=14, warmup=2, active=1)]).train()
    assert "No step was profiled" in caplog.text
    assert "16 steps" in caplog.text
    assert not (tmp_path / "profile").exists()


def test_profiler_command_profiles_a_script(tmp_path):
    """The script ends after the profiled steps; its arguments follow its name."""
    (tmp_path / "train.py").write_text(
        "import sys, torch\n"
        "from transformers import Trainer, TrainingArguments\n"
        "model = torch.nn.Module()\n"
        "model.weight = torch.nn.Parameter(torch.ones(2))\n"
        "model.forward = lambda x, labels=None: {'loss': (model.weight * x).sum()}\n"
        "data = [{'x': torch.ones(2), 'labels': torch.ones(1)}] * 400\n"
        "args = TrainingArguments(sys.argv[1], disable_tqdm=True, use_cpu=True)\n"
        "trainer = Trainer(model, args, train_dataset=data)\n"
        "trainer.train()\n"
        "print('steps', trainer.state.global_step)\n"
    )
    words = ["profile", "--wait", "1", "--active", "3", "train.py", "out"]
    process = command(*words, cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert process.returncode == 0, process.stderr
    assert "3 steps" in process.stdout
    assert "steps 6" in process.stdout or "steps 7" in process.stdout
    assert {path.name for path in (tmp_path / "out" / "profile").iterdir()} == {
        "profile.txt",
        "trace.json",
    }
