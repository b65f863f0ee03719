"""A resumed training is the training: the same bits, the same logs, whatever reads the data and
wherever it stopped.
"""

import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from helpers.checkpoints import resumed_trainings
from helpers.checkpoints.resumed_trainings import (
    KINDS,
    SAMPLES,
    STEPS,
    Kind,
    Noisy,
    OwnDraws,
    OwnNoise,
    OwnStream,
    Remembering,
    Run,
    StatefulStream,
    Stream,
    collate,
    share,
    train,
)
from helpers.trainer.tiny_trainings import At, Tiny, tiny
from lightrainer import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    default_data_collator,
)
from lightrainer.lightning_modules.checkpoints import process_token, staging_path
from lightrainer.lightning_modules.common.safe_serialization import from_plain

# torchdata 0.11 with torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

# The first step, one in mid-epoch, the last one of an epoch, one in mid-epoch of the next, and the
# very last.
PLACES = (1, 3, 6, 8, STEPS)
WITH_WORKERS = (
    # Samplers, which the process reads ahead of its workers: drawn, of batches, with a state.
    "samples",
    "a table by tokens",
    "a sampler with a state",
    # Streams, which the workers share out: skipped, restored by their state, those of datasets.
    "a stream",
    "a stream with a state",
    "a shuffled stream of rows",
    # What each worker draws, counts or is told itself.
    "their own generators",
    "a stream with its own generators",
    "samples with a state",
    "samples that depend on the epoch",
    "a stream that depends on the epoch",
)
EVALUATED_WITH_WORKERS = ("samples", "a stream", "their own generators")
"""The others only train: all would be evaluated with the same data, and the same collator or one
that draws itself.
"""
WORKERS = [
    {"dataloader_num_workers": 2, "dataloader_persistent_workers": persistent}
    for persistent in (False, True)
]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Nothing is killed here, so nothing has to be on the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """`uninterrupted(kind, **changes)`: a training that saved at all places; each is made once."""
    runs: dict[str, Run] = {}

    def get(name: str, **changes) -> Run:
        if KINDS[name].needs:
            pytest.importorskip(KINDS[name].needs)
        key = f"{name} {changes}"
        if key not in runs:
            runs[key] = train(
                tmp_path_factory.mktemp("whole"), KINDS[name], saves=PLACES, **changes
            )
        return runs[key]

    return get


@pytest.mark.parametrize("name", KINDS)
def test_from_every_place_it_ends_the_same(uninterrupted, tmp_path, name):
    """Data set and collator draw from torch's, numpy's and Python's generator; it is evaluated
    after each epoch.
    """
    whole = uninterrupted(name)
    assert whole.end["step"][0] == STEPS
    for step in PLACES:
        resumed = train(tmp_path / str(step), KINDS[name], resume=whole.checkpoint(step))
        assert resumed.end == whole.end, f"from step {step}"


@pytest.mark.parametrize("name", ["samples", "a stream with a state", "a table by length"])
@pytest.mark.parametrize("file", ["data_state_0.pth", "rng_state.pth"])
def test_resume_needs_every_saved_state(uninterrupted, tmp_path, name, file):
    """Negative control: without that file the weights are others."""
    whole = uninterrupted(name)
    copy = Path(shutil.copytree(whole.checkpoint(3), tmp_path / "checkpoint-3"))
    for missing in (file, "_manifest.json"):
        (copy / missing).unlink()
    resumed = train(tmp_path / "out", KINDS[name], resume=str(copy))
    assert resumed.end["step"] == whole.end["step"]
    assert resumed.end["weights"] != whole.end["weights"]


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the datasets are not importable by a spawned process"
)
@pytest.mark.parametrize("workers", WORKERS, ids=["renewed", "persistent"])
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_resume_with_workers_is_exact(uninterrupted, tmp_path, name, workers):
    """The random numbers that the workers draw are restored as well."""
    options = {"dataloader_multiprocessing_context": "fork", **workers}
    if name not in EVALUATED_WITH_WORKERS:
        options["eval_strategy"] = "no"
    whole = uninterrupted(name, **options)
    # Renewed ones begin every epoch as they began the first; persistent ones cross the end of an
    # epoch.
    for step in (6, 8) if workers["dataloader_persistent_workers"] else (1, 8):
        resumed = train(tmp_path / str(step), KINDS[name], resume=whole.checkpoint(step), **options)
        assert resumed.end == whole.end, f"from step {step}"


@pytest.mark.parametrize("step", [2, 5])
def test_resume_with_another_number_of_workers_reads_the_same_samples(tmp_path, step):
    """Only what each worker draws is lost then: without random numbers it is the same training."""
    plain = {
        "data": torch.utils.data.Subset(Noisy().points, range(SAMPLES)),
        "data_collator": None,
    }
    whole = train(tmp_path / "whole", saves=(step,), dataloader_num_workers=2, **plain)
    resumed = train(tmp_path / "resumed", resume=whole.checkpoint(step), **plain)
    assert resumed.end == whole.end


@pytest.mark.parametrize("step", [3, 6, 8])
def test_resume_loader_of_the_script_keeps_its_batches(tmp_path, step):
    """Its position counts them, not those of an argument that it does not use."""

    class OwnBatches(Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, 4, shuffle=True, collate_fn=collate)

    kind = Kind(cls=OwnBatches)
    whole = train(tmp_path / "whole", kind, saves=(step,), gradient_accumulation_steps=1)
    changed = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 1}
    resumed = train(tmp_path / "on", kind, resume=whole.checkpoint(step), **changed)
    assert resumed.end == whole.end


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [2, 8])
def test_resume_stateful_loader_in_other_batches(tmp_path, step, workers):
    """The rest of the epoch has its samples, in the same order."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    class Loaded(Trainer):
        def get_train_dataloader(self):
            size = self.args.per_device_train_batch_size
            options = {"collate_fn": default_data_collator, "num_workers": workers}
            options["shuffle"] = True
            return stateful.StatefulDataLoader(self.train_dataset, size, **options)

    def without_dropout():
        torch.manual_seed(3)
        return Tiny(dropout=0.0)

    data = torch.utils.data.Subset(Noisy().points, range(SAMPLES))
    options = {"kind": Kind(cls=Loaded), "data": data, "num_train_epochs": 1 + step // 6}
    options["data_collator"] = default_data_collator
    whole = train(tmp_path / "whole", saves=(step,), model=without_dropout(), **options)
    options |= {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 4}
    from_step = whole.checkpoint(step)
    resumed = train(tmp_path / "on", resume=from_step, model=without_dropout(), **options)
    for left, right in zip(resumed.end["weights"], whole.end["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(left), torch.tensor(right))


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the datasets are not importable by a spawned process"
)
@pytest.mark.parametrize("workers", [(2, 0), (0, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("name", ["a stream", "a stream with a state", "a shuffled stream of rows"])
def test_resume_stream_pass_ends_with_its_workers(tmp_path, name, workers):
    """Their batches alternate, so that another number of workers would read other samples; saved
    twice, too.
    """
    first, second = (
        {"max_steps": 6, "eval_strategy": "no", "dataloader_num_workers": count}
        for count in workers
    )
    for options in (first, second):
        if options["dataloader_num_workers"]:
            options["dataloader_multiprocessing_context"] = "fork"
    whole = train(tmp_path / "whole", KINDS[name], saves=(2,), **first)
    resumed = train(tmp_path / "on", KINDS[name], saves=(4,), resume=whole.checkpoint(2), **second)
    assert resumed.end == whole.end
    again = train(tmp_path / "again", KINDS[name], resume=resumed.checkpoint(4), **second)
    assert again.end == whole.end


def test_resume_stream_with_another_order_is_refused(tmp_path):
    stopped = train(tmp_path, KINDS["a stream"], stop=2, dataloader_num_workers=2)
    changed = {
        "per_device_train_batch_size": 1,
        "dataloader_num_workers": 2,
        "resume": stopped.checkpoint(2),
    }
    with pytest.raises(
        ValueError, match=r"2 workers read it.*per_device_train_batch_size=1 instead of 2"
    ):
        train(tmp_path / "on", KINDS["a stream"], **changed)
    begun_again = train(
        tmp_path / "on", KINDS["a stream"], ignore_data_skip=True, max_steps=4, **changed
    )
    assert begun_again.end["step"][0] == 4


class RepairedStream(Stream):
    """One whose samples can be changed."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return (self.items[index] for index in share(range(len(self.items))))


class RepairedStatefulStream(StatefulStream):
    def __init__(self, items):
        self.noisy = items


REPAIRED = {
    "samples": list,
    "a stream": RepairedStream,
    "a stream with a state": RepairedStatefulStream,
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", REPAIRED)
def test_resume_reads_a_prefetched_batch_again(tmp_path, name, workers):
    """A checkpoint holds positions, no samples: a row of that batch that was repaired meanwhile
    is trained.
    """
    items = Noisy().points
    damaged = [*items]
    damaged[12] = {**items[12], "x": items[12]["x"] * float("nan")}
    options = {
        "data_collator": None,
        "train_sampling_strategy": "sequential",
        "dataloader_num_workers": workers,
    }
    options |= {"max_steps": 6, "eval_strategy": "no"}
    whole = train(tmp_path / "whole", data=REPAIRED[name](items), **options)
    train(tmp_path / "damaged", data=REPAIRED[name](damaged), stop=3, **options)
    resumed = train(
        tmp_path / "on",
        data=REPAIRED[name](items),
        resume=str(tmp_path / "damaged" / "checkpoint-3"),
        **options,
    )
    assert resumed.end == whole.end


# The states of other loaders are what these return.
OF_OUR_LOADERS = [name for name in KINDS if "StatefulDataLoader" not in name]
OF_OUR_LOADERS.remove("a loader with a state")


@pytest.mark.parametrize("name", OF_OUR_LOADERS)
def test_resume_checkpoint_holds_no_samples(uninterrupted, name):
    """Arrays in the position in the data are states of generators only."""
    state = torch.load(
        Path(uninterrupted(name).checkpoint(3)) / "data_state_0.pth", weights_only=False
    )
    arrays = list(arrays_in(from_plain(state)["loader"]))
    assert arrays
    of_workers = np.dtype("uint8")
    assert {array.dtype for array in arrays} <= {torch.uint8, np.dtype("uint32"), of_workers}


def arrays_in(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_in(item)
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        yield value


def test_saving_changes_nothing(uninterrupted, tmp_path):
    """Neither does it draw a number, nor does the bookkeeping for it."""
    assert train(tmp_path).end == uninterrupted("samples").end


@pytest.mark.parametrize(
    "name",
    [
        "samples",
        "a stream",
        "a table by length",
        "a StatefulDataLoader of a stream",
        "a StatefulDataLoader of a stream with workers",
    ],
)
def test_after_several_interruptions_it_ends_the_same(uninterrupted, tmp_path, name):
    whole = uninterrupted(name)
    train(tmp_path, KINDS[name], stop=2)
    for begin, stop in ((2, 6), (6, 7), (7, 11)):
        stopped = train(
            tmp_path, KINDS[name], stop=stop, resume=str(tmp_path / f"checkpoint-{begin}")
        )
        assert stopped.end["step"][0] == stop
    assert train(tmp_path, KINDS[name], resume=str(tmp_path / "checkpoint-11")).end == whole.end


@pytest.mark.parametrize("step", PLACES)
def test_resume_loads_no_sample_twice(uninterrupted, tmp_path, step):
    """A map-style dataset is asked for nothing that was trained; the batch that had been read
    ahead is read again.
    """
    whole = uninterrupted("samples").trainer.train_dataset.seen
    data = Noisy()
    train(tmp_path, data=data, resume=uninterrupted("samples").checkpoint(step))
    epochs, steps = divmod(step, 6)
    assert data.seen == whole[epochs * SAMPLES + 4 * steps :]


@pytest.mark.parametrize("name", ["data_seed", "seed"])
def test_resume_with_another_seed_keeps_the_order_and_says_so(
    uninterrupted, tmp_path, caplog, name
):
    whole = uninterrupted("samples")
    data = Noisy()
    resumed = train(tmp_path, data=data, resume=whole.checkpoint(3), **{name: 7})
    assert resumed.end == whole.end
    assert f"{name}=7 has no effect on the order of the samples" in caplog.text


def test_resume_with_another_seed_begins_the_epoch_again(uninterrupted, tmp_path, caplog):
    """With `ignore_data_skip`, the order is that of the second epoch of a training with the new
    seed, as in transformers.
    """
    fresh = train(tmp_path / "fresh", data=Noisy(), data_seed=7).trainer.train_dataset.seen
    resume = uninterrupted("samples").checkpoint(8)
    orders = {}
    for seed in (42, 7):
        data = Noisy()
        train(tmp_path, data=data, resume=resume, ignore_data_skip=True, data_seed=seed)
        orders[seed] = data.seen
    # Four steps of four samples are left.
    assert orders[7][:16] == fresh[SAMPLES : SAMPLES + 16]
    assert orders[42][:16] != orders[7][:16]
    assert "has no effect" not in caplog.text


def test_resume_with_another_batch_size_says_that_it_applies(uninterrupted, tmp_path, caplog):
    resume = uninterrupted("samples").checkpoint(3)
    train(tmp_path, resume=resume, per_device_train_batch_size=4)
    assert "which remain in effect" not in caplog.text
    assert re.search(r"applies from now on:\s+per_device_train_batch_size: 4 ", caplog.text)


CHANGES = [
    {"gradient_accumulation_steps": 1, "max_steps": 15},
    {"gradient_accumulation_steps": 3},
    {"dataloader_drop_last": True},
    {"num_train_epochs": 1.5},
    {"logging_strategy": "epoch"},
    {"logging_steps": 5, "eval_strategy": "steps", "eval_steps": 3},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}},
    {"data_seed": 5, "optim": "sgd"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_whatever_the_arguments_it_ends_the_same(tmp_path, changes):
    """Logs that are made of steps before and after the interruption included."""
    changes = {**changes, "save_strategy": "steps", "save_steps": 1}
    whole = train(tmp_path / "whole", **changes)
    last = whole.end["step"][0]
    for step in sorted({1, 3, 6, last // 2, last - 1, last}):
        begin = whole.killed_after(step, tmp_path / str(step))
        assert train(tmp_path / str(step), resume=begin, **changes).end == whole.end, (
            f"from step {step}"
        )


@pytest.mark.parametrize("saving", ["steps", "epoch"])
def test_early_stopping_and_the_best_model_are_the_same(tmp_path, saving):
    """Also from a checkpoint of an epoch's last step, to which the evaluation at the epoch's end
    is still to come.
    """
    options = {
        "num_train_epochs": 6,
        "metric_for_best_model": "loss",
        "greater_is_better": True,
        "save_steps": 1,
    }
    options |= {"restore_callback_states_from_checkpoint": True, "save_strategy": saving}
    options["load_best_model_at_end"] = saving == "epoch"
    stopping = lambda: [EarlyStoppingCallback(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightrainer.callbacks.early_stopping.logger.warning", lambda *_: None)
        whole = train(tmp_path / "whole", callbacks=stopping(), **options)
        last = whole.end["step"][0]
        assert 6 < last < 36, "it is to stop early, and not at once"
        for step in range(6, last, 6) if saving == "epoch" else (5, 6, last - 6, last - 1, last):
            begin = whole.killed_after(step, tmp_path / str(step))
            resumed = train(tmp_path / str(step), callbacks=stopping(), resume=begin, **options)
            assert resumed.end == whole.end, f"from step {step}"


@pytest.mark.parametrize("restores", [False, True])
def test_a_training_that_was_stopped_early_continues(tmp_path, restores):
    """From the checkpoint after the evaluation that stopped it; a kept count ends it sooner."""

    class Worse(EarlyStoppingCallback):
        """No evaluation improves."""

        def _improves(self, *_):
            return False

    options = {
        "save_strategy": "epoch",
        "num_train_epochs": 6,
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "restore_callback_states_from_checkpoint": restores,
    }
    whole = train(tmp_path, callbacks=[Worse(2)], **options)
    assert whole.end["step"][0] == 18, "it was stopped at its third evaluation"
    resumed = train(tmp_path, callbacks=[Worse(2)], resume=whole.checkpoint(18), **options)
    assert resumed.end["step"][0] == (24 if restores else 30)


def test_resume_runs_the_end_of_an_epoch_once(tmp_path):
    """A checkpoint made there after the evaluation does not evaluate again, nor save again."""
    options = {"save_strategy": "epoch", "num_train_epochs": 2}
    whole = train(tmp_path / "whole", **options)
    for step in (6, 12):
        resumed = train(tmp_path / str(step), resume=whole.checkpoint(step), **options)
        assert resumed.end == whole.end
        assert [path.name for path in (tmp_path / str(step)).glob("checkpoint-*")] == [
            "checkpoint-12"
        ] * (step == 6)


def stop_epoch(of, state, control):
    control.should_epoch_stop = True


@pytest.mark.parametrize("logging", ["steps", "epoch"])
@pytest.mark.parametrize("name", ["a stream", "a stream with a state", "a loader with a state"])
def test_resume_at_the_unknown_end_of_a_stream_logs_the_last_step(tmp_path, name, logging):
    """Norm and rate are those of the step before the checkpoint: no step is left in the epoch."""
    options = {"save_strategy": "steps", "save_steps": 1, "logging_strategy": logging}
    whole = train(tmp_path / "whole", KINDS[name], **options)
    assert any("grad_norm" in entry for entry in whole.end["logs"])
    begin = whole.killed_after(6, tmp_path / "6")
    assert train(tmp_path / "6", KINDS[name], resume=begin, **options).end == whole.end


LEFT = [
    "samples",
    "a stream",
    "a plain DataLoader",
    "a StatefulDataLoader",
    "a StatefulDataLoader with generators",
    "a StatefulDataLoader of a stream",
    "a StatefulDataLoader of a stream with workers",
    "a StatefulDataLoader with persistent workers",
]


@pytest.mark.parametrize("name", LEFT)
def test_resume_epoch_stopped_by_a_callback_is_not_continued(tmp_path, name):
    """Saved with the very step that ends the epoch, before the evaluation at its end."""
    if KINDS[name].needs:
        pytest.importorskip(KINDS[name].needs)
    options = {"max_steps": 14, "save_strategy": "steps", "save_steps": 1}
    stopping = lambda: [At("on_step_end", stop_epoch, step=step) for step in (3, 8)]
    whole = train(tmp_path / "whole", KINDS[name], callbacks=stopping(), **options)
    assert [entry["step"] for entry in whole.end["logs"] if "eval_loss" in entry] == [3, 8, 14]
    for step in (3, 4, 8):
        begin = whole.killed_after(step, tmp_path / str(step))
        resumed = train(
            tmp_path / str(step), KINDS[name], callbacks=stopping(), resume=begin, **options
        )
        assert resumed.end == whole.end, f"from step {step}"


MOMENTS = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step")


def save_at_once(trainer, state, control):
    trainer._save_checkpoint(trainer.model, trial=None)


def tiny_without_dropout():
    model = tiny()
    model.dropout.p = 0.0
    return model


@pytest.fixture
def undrawn(monkeypatch):
    """Nothing is drawn in a step: the passes before a checkpoint inside it are made again."""
    monkeypatch.setattr(resumed_trainings, "noise", lambda: 0.0)
    monkeypatch.setattr(resumed_trainings, "tiny", tiny_without_dropout)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", LEFT[:-1])
def test_resume_from_inside_a_step_takes_it_again(tmp_path, undrawn, name, moment):
    """Its gradients are not in the checkpoint; saved in a step in mid-epoch, and in a last one.

    Not with persistent workers, which draw in each batch.
    """
    if KINDS[name].needs:
        pytest.importorskip(KINDS[name].needs)
    options = {"max_steps": STEPS, "save_strategy": "no"}
    steps = (3, 8) if moment == "on_substep_end" else (3, 5, 8)
    saving = [At(moment, save_at_once, step=step) for step in steps]
    whole = train(tmp_path / "whole", KINDS[name], callbacks=saving, **options)
    for step in steps:
        begin = whole.killed_after(step, tmp_path / str(step))
        resumed = train(tmp_path / str(step), KINDS[name], resume=begin, **options)
        for part in ("weights", "step"):
            assert resumed.end[part] == whole.end[part], f"{part} from step {step}"


class Recording(Trainer):
    def compute_loss(self, *args, **kwargs):
        result = super().compute_loss(*args, **kwargs)
        self.record(of_step=self.state.global_step)
        return result


@pytest.mark.parametrize("moment", MOMENTS)
def test_resume_from_inside_a_step_counts_its_losses_once(tmp_path, undrawn, moment):
    """In the next log, which covers earlier steps too; the same for recorded values."""
    kind = Kind(cls=Recording)
    options = {"max_steps": STEPS, "save_strategy": "no", "logging_steps": 4}
    whole = train(tmp_path / "whole", kind, callbacks=[At(moment, save_at_once, step=6)], **options)
    begin = whole.killed_after(6, tmp_path / "6")
    resumed = train(tmp_path / "6", kind, resume=begin, **options)
    assert resumed.end["logs"] == whole.end["logs"]


def stop_training(trainer, state, control):
    control.should_training_stop = True


@pytest.mark.parametrize("step", [3, 10])
def test_resume_takes_a_step_again_that_a_callback_has_broken_off(tmp_path, undrawn, step):
    """Saved at the end of the epoch, which is that step; in the middle of it and in its last one."""
    options = {"save_strategy": "epoch", "eval_strategy": "no", "per_device_train_batch_size": 1}
    whole = train(tmp_path / "whole", **options)
    stopping = [At("on_substep_end", stop_training, step=step)]
    stopped = train(tmp_path / "stopped", callbacks=stopping, **options)
    assert stopped.trainer.state.global_step == step
    resumed = train(tmp_path / "stopped", resume=stopped.checkpoint(step), **options)
    for part in ("weights", "step"):
        assert resumed.end[part] == whole.end[part], part


class ShiftInEpoch(TrainerCallback):
    """Draws something for each epoch, as callbacks that resample do."""

    def on_epoch_begin(self, args, state, control, train_dataloader, **kwargs):
        shift = float(torch.rand(())) + random.random() + float(np.random.rand())
        train_dataloader.dataset.shift = shift


class Shifted(Noisy):
    shift = 0.0

    def __getitem__(self, index):
        point = super().__getitem__(index)
        return {**point, "x": point["x"] + self.shift}


@pytest.mark.parametrize("saving", ["steps", "epoch"])
@pytest.mark.parametrize("name", ["samples", "a plain DataLoader"])
def test_resume_draws_at_the_begin_of_an_epoch_as_before(tmp_path, name, saving):
    """From the end of the epoch before, from the middle, and from the very end."""
    options = {"save_strategy": saving, "save_steps": 1, "data": Shifted()}
    whole = train(tmp_path / "whole", KINDS[name], callbacks=[ShiftInEpoch()], **options)
    for step in (2, 6, 8, 12) if saving == "steps" else (6, 12):
        begin = whole.killed_after(step, tmp_path / str(step))
        options["data"] = Shifted()
        resumed = train(
            tmp_path / str(step), KINDS[name], callbacks=[ShiftInEpoch()], resume=begin, **options
        )
        assert resumed.end == whole.end, f"from step {step}"


def test_resume_collator_that_evaluations_share(tmp_path):
    """Its generator is where evaluations have left it, also in an epoch that is read again."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}

    class Loaded(Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, 2, shuffle=True, collate_fn=self.data_collator)

    kind = Kind(OwnNoise, cls=Loaded, makes_collator=OwnDraws)
    whole = train(tmp_path / "whole", kind, **options)
    for step in (2, 6, 8):
        begin = whole.killed_after(step, tmp_path / str(step))
        assert train(tmp_path / str(step), kind, resume=begin, **options).end == whole.end


class MeasuredNoise(OwnNoise):
    """Draws for each sample, also when lengths are measured."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "input_ids": [0] * (index % 4)}


EVALUATED_SETS = {
    "one": OwnNoise,
    "a part of one": lambda: Subset(OwnNoise(), range(6)),
    "several": lambda: {"first": OwnNoise(), "second": Remembering()},
    "a stream": OwnStream,
}


@pytest.mark.parametrize("name", EVALUATED_SETS)
def test_resume_evaluation_data_with_generators(tmp_path, name):
    """They draw on where the interrupted training was."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    make = EVALUATED_SETS[name]
    whole = train(tmp_path / "whole", eval_dataset=make(), **options)
    for step in (2, 6):
        begin = whole.killed_after(step, tmp_path / str(step))
        resumed = train(tmp_path / str(step), resume=begin, eval_dataset=make(), **options)
        assert resumed.end == whole.end


def test_resume_measures_evaluation_data_without_draws(tmp_path):
    """The lengths are measured in the first evaluation of the resumed training again."""
    by_length = {"train_sampling_strategy": "group_by_length", "eval_strategy": "epoch"}
    kind = Kind(MeasuredNoise, by_length)
    whole = train(tmp_path / "whole", kind, saves=(6, 8), eval_dataset=MeasuredNoise())
    for step in (6, 8):
        resumed = train(
            tmp_path / str(step),
            kind,
            resume=whole.checkpoint(step),
            eval_dataset=MeasuredNoise(),
        )
        assert resumed.end == whole.end


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the collator is not importable")
@pytest.mark.parametrize("evaluating", ["steps", "epoch"])
def test_resume_repeats_an_evaluation_with_workers_as_they_were(tmp_path, evaluating):
    """Persistent workers draw in the collator: a checkpoint from the middle of an evaluation, as
    SIGTERM writes it, has their states from before it.
    """
    options = {
        "eval_strategy": evaluating,
        "eval_steps": 3,
        "dataloader_num_workers": 1,
        "dataloader_persistent_workers": True,
        "save_strategy": "no",
    }
    trainers: list[Trainer] = []

    class Saving(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            if state.global_step == 6 and not os.path.exists(tmp_path / "whole" / "checkpoint-6"):
                trainers[0]._lightrainer.run._save_at_once()

    class Known(Trainer):
        def train(self, *args, **kwargs):
            trainers[:] = [self]
            return super().train(*args, **kwargs)

    kind = Kind(cls=Known)
    whole = train(tmp_path / "whole", kind, callbacks=[Saving()], **options)
    begin = whole.checkpoint(6)
    assert train(tmp_path / "6", kind, resume=begin, **options).end == whole.end


class DrawingModel(Tiny):
    """Draws in evaluations too; a submodule makes its generator when it draws first."""

    def __init__(self):
        super().__init__()
        self.noise = np.random.default_rng(1)
        self.norm.generator = None

    def logits(self, x):
        if self.norm.generator is None:
            self.norm.generator = torch.Generator().manual_seed(1)
        x = x + torch.rand(x.shape, generator=self.norm.generator)
        return super().logits(x + float(self.noise.normal()))


class DrawingTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.draws = random.Random(1)

    def compute_loss(self, model, inputs, **kwargs):
        inputs["x"] = inputs["x"] + self.draws.random()
        return super().compute_loss(model, inputs, **kwargs)


class DrawingOptimizer(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.05)
        self.draws = np.random.RandomState(1)

    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            weight.grad.mul_(1 + self.draws.rand())
        return super().step(closure)


class DrawingLoss:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, outputs, labels, num_items_in_batch=None):
        weight = 1 + torch.rand((), generator=self.generator)
        return weight * torch.nn.functional.cross_entropy(outputs["logits"], labels)


def drawing_by(part):
    """Return what a training is made of, of which this part has generators in its attributes."""
    model = DrawingModel() if part == "model" else tiny()
    changes = {"model": model, "eval_strategy": "steps", "eval_steps": 2}
    if part == "optimizer":
        changes["optimizers"] = (DrawingOptimizer(model.parameters()), None)
    if part == "loss":
        changes["compute_loss_func"] = DrawingLoss()
    return changes


@pytest.mark.parametrize("part", ["model", "trainer", "optimizer", "loss"])
def test_generators_of_the_script_are_restored(tmp_path, part):
    """Those in attributes of what computes a step; the data has them in the tests above."""
    kind = Kind(cls=DrawingTrainer if part == "trainer" else Trainer)
    whole = train(tmp_path / "whole", kind, saves=(3, 6), **drawing_by(part))
    for step in (3, 6):
        resumed = train(
            tmp_path / str(step), kind, resume=whole.checkpoint(step), **drawing_by(part)
        )
        assert resumed.end == whole.end, f"from step {step}"


def test_generators_of_the_script_are_restored_in_other_batches(tmp_path):
    """The file of the global generators holds them, too."""
    stopped = train(tmp_path, stop=2, **drawing_by("model"))
    resumed = train(
        tmp_path / "on",
        resume=stopped.checkpoint(2),
        per_device_train_batch_size=1,
        **drawing_by("model"),
    )
    assert resumed.end["step"][0] > 2


def test_resume_restored_control_does_not_save_again(tmp_path):
    """A checkpoint made before the evaluation at an epoch's end says `should_save`, for itself."""
    whole = train(tmp_path / "whole", saves=(6,), save_strategy="no")
    resumed = train(
        tmp_path / "on",
        save_strategy="no",
        resume=whole.checkpoint(6),
        restore_callback_states_from_checkpoint=True,
    )
    assert resumed.end == whole.end
    assert not list((tmp_path / "on").glob("checkpoint-*"))


def test_resume_makes_a_training_longer(tmp_path):
    """A training that `max_steps` cut short in mid-epoch resumes there, with the schedule of the
    longer one.
    """
    flat = {"lr_scheduler_type": "constant", "eval_strategy": "no"}
    whole = train(tmp_path / "whole", **flat)
    train(tmp_path / "short", max_steps=8, save_strategy="epoch", **flat)
    resumed = train(tmp_path / "long", resume=str(tmp_path / "short" / "checkpoint-8"), **flat)
    assert resumed.end["weights"] == whole.end["weights"]


def test_resume_with_the_same_trainer(tmp_path):
    """Not only a new process."""
    whole = train(tmp_path / "whole")
    stopped = train(tmp_path / "stopped", stop=5).trainer
    stopped.callback_handler.callbacks.pop(-2)  # the one that stops
    stopped.train(resume_from_checkpoint=True)
    assert Run(stopped, tmp_path).end == whole.end


@pytest.mark.parametrize("value", [1, ["checkpoint-2"], b"checkpoint-2"])
def test_resume_from_another_type_names_the_argument(tmp_path, value):
    with pytest.raises(
        TypeError, match=r"resume_from_checkpoint=.*Pass a folder checkpoint-<step>"
    ):
        train(tmp_path, resume=value)


def test_resume_from_a_file_names_it(tmp_path):
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(FileNotFoundError, match="it is a file, not a folder"):
        train(tmp_path, resume=str(file))


def test_resume_from_a_named_checkpoint_that_was_being_replaced(uninterrupted, tmp_path, caplog):
    """Between the two renames of a process that was killed."""
    whole = uninterrupted("samples")
    folder = whole.killed_after(3, tmp_path)
    machine, pid, _ = process_token().rsplit("-", 2)
    Path(folder).rename(staging_path(folder, f"{machine}-{pid}-1", kind="replaced"))
    assert train(tmp_path, KINDS["samples"], resume=folder).end == whole.end
    assert "was restored" in caplog.text


def test_data_that_changed_is_told(uninterrupted, tmp_path, caplog):
    """An epoch of another length: the position is counted in steps, as in the reference."""
    data = Noisy()
    data.points = data.points[:16]
    train(tmp_path, data=data, resume=uninterrupted("samples").checkpoint(3))
    assert "An epoch had 6 steps when the checkpoint was written and has 4 now" in caplog.text
