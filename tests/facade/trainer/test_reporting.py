"""Logs, metrics, files, warnings and the memory report of a Trainer."""

import json
import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.contract.of_reporting import SometimesNotANumber
from helpers.faults.refused_writes import writes_fail_after
from helpers.trainer.tiny_trainings import (
    Tiny,
    files,
    losses,
    make_trainer,
    points,
    trained_trainer,
)
from lightrainer import Trainer
from lightrainer.facade.trainer.memory_report import MemoryTracker

# --- metrics and state, as files and on the screen


def test_metrics_as_files(tmp_path):
    """One file for each split, as they are; one for all of them together."""
    trainer = make_trainer(tmp_path)
    trainer.save_metrics("train", {"train_loss": 0.123456789, "epoch": 1.0})
    trainer.save_metrics("eval", {"eval_loss": 2.0, "epoch": 1.5})
    trainer.save_metrics("test", {"test_loss": 3.0}, combined=False)
    assert files(tmp_path) == [
        "all_results.json",
        "eval_results.json",
        "test_results.json",
        "train_results.json",
    ]
    read = {name: json.loads((tmp_path / name).read_text()) for name in files(tmp_path)}
    assert read["train_results.json"] == {"train_loss": 0.123456789, "epoch": 1.0}
    assert read["test_results.json"] == {"test_loss": 3.0}
    assert read["all_results.json"] == {"train_loss": 0.123456789, "epoch": 1.5, "eval_loss": 2.0}


class Words:
    """A processing class with more to save than a model."""

    def save_pretrained(self, folder):
        (Path(folder) / "words.txt").write_text("word " * 40_000)


SAVES = {
    "save_metrics": (10, lambda made: made.save_metrics("train", {"train_loss": 0.5})),
    "save_state": (10, lambda made: made.save_state()),
    "create_model_card": (10, lambda made: made.create_model_card()),
    "save_model": (10, lambda made: made.save_model()),
    "the processing class": (100_000, lambda made: made.save_model()),
}


@pytest.mark.parametrize("name", SAVES)
def test_save_on_a_full_disk_names_the_place_and_keeps_the_older_files(tmp_path, name):
    size, save = SAVES[name]
    trainer = make_trainer(tmp_path, processing_class=Words())
    save(trainer)
    before = {path: (tmp_path / path).read_bytes() for path in files(tmp_path)}
    with writes_fail_after(size) as raised:
        save(trainer)
    assert str(tmp_path) in str(raised.value)
    # What another class writes, it truncates itself.
    before.pop("words.txt", None)
    assert (
        before.items() <= {path: (tmp_path / path).read_bytes() for path in files(tmp_path)}.items()
    )


def test_other_ranks_write_and_print_nothing(tmp_path, capsys, monkeypatch):
    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    trainer.log_metrics("train", {"a": 1})
    trainer.save_metrics("train", {"a": 1})
    trainer.save_state()
    assert files(tmp_path) == []
    assert capsys.readouterr().out == ""


def test_evaluation_result_is_printed(tmp_path):
    """Plain numbers, named after the set, whatever `compute_metrics` returns."""
    values = {"right": torch.tensor(0.5), "eval_sure": 1, "deep": {"er": torch.tensor([2])}}
    trainer = make_trainer(tmp_path, compute_metrics=lambda prediction: dict(values))
    trainer.evaluate()
    metrics = trainer.evaluate()
    names = (
        "loss right sure deep runtime samples_per_second steps_per_second model_preparation_time"
    )
    assert set(metrics) == {"epoch", *(f"eval_{name}" for name in names.split())}
    assert metrics["eval_right"] == 0.5
    assert metrics["eval_deep"] == {"er": 2}
    assert json.loads(json.dumps(metrics)) == metrics


# --- logs


class RemembersWhetherFinite(SometimesNotANumber):
    """Keeps whether the loss of each batch was finite."""

    def __init__(self):
        super().__init__()
        self.finite = []

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        self.finite.append(math.isfinite(outputs["loss"].item()))
        return outputs


@pytest.mark.parametrize("hidden", [True, False])
def test_steps_with_losses_that_are_not_numbers_are_counted(tmp_path, caplog, hidden):
    """In the log that follows and at the end, whether the filter keeps them out of the log."""
    model = RemembersWhetherFinite()
    trainer = trained_trainer(
        tmp_path, model=model, logging_nan_inf_filter=hidden, logging_steps=4, num_train_epochs=2
    )

    bad = [step for step, finite in enumerate(model.finite, start=1) if not finite]
    bad_before_first_log = [step for step in bad if step <= 4]
    at_first_log, at_the_end = [
        record.getMessage() for record in caplog.records if "infinite" in record.getMessage()
    ]
    assert at_first_log.startswith(
        f"{len(bad_before_first_log)} of the 4 steps since the last log had a NaN or infinite "
        f"loss, the first of them step {bad_before_first_log[0]}."
    )
    assert ("logging_nan_inf_filter" in at_first_log) == hidden
    assert at_the_end.startswith(f"{len(bad)} of the 8 steps of this training")
    assert 0 < len(bad) < 8
    assert math.isfinite(losses(trainer)[0]) == hidden


def test_quiet_training_prints_only_logs(tmp_path, capsys, caplog):
    """Neither tips nor announcements of Lightning's."""
    make_trainer(tmp_path).train()
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 5
    assert all(line.startswith("{") for line in shown.out.splitlines())
    assert shown.err == ""
    assert not [record for record in caplog.records if "lightning" in record.name]


# --- what can be asked


def test_how_many_examples(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2)
    assert trainer.num_examples(trainer.get_train_dataloader()) == 16
    assert trainer.num_examples([1, 2, 3]) == 12, "no dataset behind it: batches times their size"
    length = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert length == (1, 4, 16, 8, 4, 4, 2)


class CountsAll(Tiny):
    """A module of a script, whose method knows nothing of embeddings."""

    main_input_name = "x"

    def num_parameters(self):
        return 7


class HasANumber(Tiny):
    main_input_name = "x"

    def __init__(self):
        super().__init__()
        self.num_parameters = 7


class LeavesOutEmbeddings(CountsAll):
    def num_parameters(self, exclude_embeddings=False):
        return 7 - exclude_embeddings


@pytest.mark.parametrize(
    ("model_class", "operations_of_a_number"),
    [(CountsAll, 0), (HasANumber, 0), (LeavesOutEmbeddings, 6 * 6)],
)
def test_operations_of_modules_that_count_their_own_way(
    tmp_path, model_class, operations_of_a_number
):
    """Only a method that can leave out embeddings is called, as that of transformers can."""
    trainer = trained_trainer(tmp_path, model=model_class())
    assert trainer.state.total_flos == operations_of_a_number * 16 * 8


def test_rates_groups_and_counts(tmp_path):
    trainer = make_trainer(tmp_path, weight_decay=0.1)
    for ask in (trainer.get_learning_rates, trainer.get_optimizer_group):
        with pytest.raises(ValueError, match=r"no optimizer yet.*create_optimizer"):
            ask()
    trainer.create_optimizer_and_scheduler(10)
    assert trainer.get_learning_rates() == [0.01, 0.01]
    assert trainer.get_optimizer_group("first.weight")["weight_decay"] == 0.1
    assert trainer.get_optimizer_group(trainer.model.first.bias)["weight_decay"] == 0.0
    assert [len(group) for group in trainer.get_optimizer_group()] == [2, 4]
    assert trainer.get_num_trainable_parameters() == sum(
        p.numel() for p in trainer.model.parameters()
    )
    assert trainer.is_world_process_zero()
    assert trainer.is_local_process_zero()


# --- the memory report


BIG = 96 << 20


def memory(metrics):
    return {name: value for name, value in metrics.items() if "_mem_" in name}


def of_memory(places):
    return [f"mem_{place}_{kind}_delta" for place in places for kind in ("alloc", "peaked")]


def test_memory_report(tmp_path):
    """In the metrics of each stage, bytes; an evaluation in the middle belongs to the training."""
    pytest.importorskip("psutil")
    trainer = make_trainer(tmp_path, skip_memory_metrics=False, eval_strategy="epoch")
    after = memory(trainer.train().metrics)
    places = {"cpu", "gpu"} if torch.cuda.is_available() else {"cpu"}
    stages = ("init", "train")
    deltas = [f"{stage}_{delta}" for stage in stages for delta in of_memory(places)]
    assert set(after) == {*deltas, *(f"before_init_mem_{place}" for place in places)}
    assert all(isinstance(value, int) for value in after.values())
    assert after["before_init_mem_cpu"] > 10 << 20
    assert set(memory(trainer.evaluate())) == {f"eval_{delta}" for delta in of_memory(places)}
    assert set(memory(trainer.predict(points(3)).metrics)) == {
        f"test_{delta}" for delta in of_memory(places)
    }


class EvaluatesByItself(Trainer):
    """Measures its evaluations in the shape of the documented method, without naming a stage."""

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        self._memory_tracker.start()
        metrics = {f"{metric_key_prefix}_loss": 0.0}
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def measure(self):
        self._memory_tracker.start()


@pytest.mark.parametrize("measured", [True, False])
def test_memory_report_knows_the_stage_by_the_calling_method(tmp_path, measured):
    pytest.importorskip("psutil")
    trainer = make_trainer(tmp_path, EvaluatesByItself, skip_memory_metrics=not measured)
    names = {"eval_mem_cpu_alloc_delta", "eval_mem_cpu_peaked_delta"} if measured else set()
    assert names <= set(memory(trainer.evaluate()))
    assert bool(memory(trainer.evaluate())) == measured


def test_memory_report_refuses_a_method_that_is_not_a_stage(tmp_path):
    pytest.importorskip("psutil")
    trainer = make_trainer(tmp_path, EvaluatesByItself, skip_memory_metrics=False)
    with pytest.raises(
        ValueError, match=r"measure\(\) is not a method whose memory is measured.*start\('eval'\)"
    ):
        trainer.measure()


@pytest.mark.parametrize("kept", [True, False])
def test_kept_memory_is_the_delta_and_released_memory_is_the_peak(kept):
    """Of memory that is really there, as each page is written to."""
    pytest.importorskip("psutil")
    tracker, before, metrics = MemoryTracker(skip=False), set(threading.enumerate()), {}
    tracker.start("train")
    (watch,) = set(threading.enumerate()) - before
    begin, end = watch._peak, time.monotonic() + 60
    block = [np.ones(BIG, dtype=np.uint8)]
    while not kept and watch._peak < begin + 0.9 * BIG and time.monotonic() < end:
        time.sleep(0.001)  # it looks now and then
    if not kept:
        block.clear()
    tracker.stop("train", metrics)
    left, peak = (metrics[f"train_mem_cpu_{kind}_delta"] for kind in ("alloc", "peaked"))
    assert 0.9 * BIG < (left if kept else peak + left) < 1.5 * BIG
    assert (peak if kept else left) < 0.2 * BIG
