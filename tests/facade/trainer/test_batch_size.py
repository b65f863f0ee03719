"""`auto_find_batch_size`: a training that runs out of memory ends as one that had the smaller
batch from the start.
"""

import copy
import random

import datasets
import numpy as np
import pytest
import torch

from helpers.trainer.tiny_trainings import (
    At,
    Tiny,
    arguments,
    make_trainer,
    points,
    same_bits,
    trained_trainer,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import (
    EarlyStoppingCallback,
    ExportableState,
    Trainer,
    TrainerCallback,
    default_data_collator,
)
from lightrainer.lightning_modules.training.out_of_memory import is_out_of_memory


@pytest.fixture
def keeping(monkeypatch):
    """Half the batch and twice the accumulation; `tests/parity/test_batch_size.py` has what
    happens without.
    """
    monkeypatch.setattr(Trainer, "keep_effective_batch_size", True)


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Limited(Tiny):
    """A model for which a batch may be too large, from some forward pass of a training on."""

    def __init__(self, limit, first=1, error=None):
        super().__init__()
        self.limit, self.from_pass, self.error = limit, first, error
        self.passes = 0
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x, labels=None):
        if self.training:
            self.passes += 1
            if len(x) > self.limit and self.passes >= self.from_pass:
                raise copy.copy(self.error) or torch.OutOfMemoryError(CUDA)
            self.seen += x.sum()
        return super().forward(x, labels)


def limited(*given, **options):
    torch.manual_seed(3)
    return Limited(*given, **options)


def history(of):
    clocks = ("runtime", "per_second")
    return [
        {k: v for k, v in entry.items() if not k.endswith(clocks)} for entry in of.state.log_history
    ]


def end_of(made):
    """All that a training leaves behind."""
    return {
        "history": history(made),
        "weights": weights(made.model),
        "seen": made.model.seen.clone(),
        "optimizer": made.optimizer.state_dict(),
        "schedule": made.lr_scheduler.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
        "steps": (
            made.state.global_step,
            made.state.max_steps,
            made.state.epoch,
            made.state.train_batch_size,
        ),
    }


def assert_same_end(one, other):
    torch.testing.assert_close(one["optimizer"], other["optimizer"], rtol=0, atol=0)
    assert same_bits(one["weights"], other["weights"])
    for name in ("seen", "torch"):
        assert torch.equal(one[name], other[name])
    for name in ("history", "schedule", "numpy", "python", "steps"):
        assert one[name] == other[name], name


def train(folder, model, **changes):
    changes.setdefault("train_dataset", points(44))
    return trained_trainer(folder, model=model, num_train_epochs=2, **changes)


ASKED = {"per_device_train_batch_size": 8, "auto_find_batch_size": True}
HALVED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize("first", [1, 4, 9], ids=lambda first: f"from pass {first} on")
@pytest.mark.parametrize(
    ("limit", "keep", "fits"),
    [(4, True, HALVED), (5, False, {"per_device_train_batch_size": 5})],
    ids=str,
)
def test_auto_find_batch_size_ends_as_a_run_with_the_batch_that_fits(
    tmp_path, monkeypatch, limit, keep, fits, first
):
    """Bit for bit, whenever the memory runs out: weights, optimizer, logs, generators, unsaved
    buffers.
    """
    monkeypatch.setattr(Trainer, "keep_effective_batch_size", keep)
    saving = {"eval_steps": 2, "eval_strategy": "steps", "save_strategy": "steps", "save_steps": 3}
    searched = train(tmp_path / "found", limited(limit, first), **ASKED, **saving)
    assert_same_end(
        end_of(train(tmp_path / "given", limited(8), **fits, **saving)), end_of(searched)
    )
    assert searched.state.train_batch_size == limit


class Drawing(torch.utils.data.IterableDataset):
    """A stream with a state; it draws with its own generator."""

    def __init__(self):
        self.generator = np.random.default_rng(4)
        self.position = 0

    def __iter__(self):
        items = points(44)
        while self.position < len(items):
            self.position += 1
            item = items[self.position - 1]
            yield {**item, "x": item["x"] + float(self.generator.standard_normal())}
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class DrawingCollator:
    """Makes its generator when it is first needed."""

    def __init__(self):
        self.generator = None

    def __call__(self, rows):
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(6)
        batch = default_data_collator(rows)
        return {**batch, "x": batch["x"] + torch.rand((), generator=self.generator)}


def test_auto_find_batch_size_restores_data_and_collator(tmp_path):
    """No sample of a stream is lost, and the same random numbers are drawn."""

    def run(name, *given, **options):
        data = {"train_dataset": Drawing(), "data_collator": DrawingCollator(), "max_steps": 6}
        return train(tmp_path / name, limited(*given), **data, **options)

    searched = run("found", 5, **ASKED)
    assert_same_end(end_of(run("given", 8, per_device_train_batch_size=5)), end_of(searched))


@pytest.mark.usefixtures("keeping")
def test_batch_size_search_leaves_the_arguments_unchanged(tmp_path):
    """While it trains, code that reads `trainer.args` and callbacks see the numbers in use."""
    sizes = set()

    def look(of, state, control):
        sizes.add(
            (
                of.args.per_device_train_batch_size,
                of.args.gradient_accumulation_steps,
                state.train_batch_size,
            )
        )

    args = arguments(tmp_path, **ASKED)
    before = copy.deepcopy(vars(args))
    trainer = train(tmp_path, limited(4), args=args, callbacks=[At("on_step_end", look)])
    assert sizes == {(4, 2, 4)}
    assert trainer.args is args
    assert vars(args) == before
    assert trainer.accelerator.gradient_accumulation_steps == 1
    args.per_device_train_batch_size = 2  # the size found applies until the arguments are changed
    trainer.train()
    assert trainer.state.train_batch_size == 2


def note_of(made):
    """Return the note on the memory error of a training."""
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as error:
        made.train()
    return "".join(getattr(error.value, "__notes__", [str(error.value)]))


def test_out_of_memory_without_batch_size_search_gives_advice(tmp_path):
    note = note_of(make_trainer(tmp_path, model=limited(2), gradient_accumulation_steps=2))
    for words in (
        "x 4 x 8, labels 4",
        "gradient_accumulation_steps=2",
        "auto_find_batch_size=True",
    ):
        assert words in note


def test_errors_of_memory_are_those_of_the_reference():
    """For those that it knows; `torch.OutOfMemoryError` counts whatever it says."""
    decided = pytest.importorskip("accelerate.utils").memory.should_reduce_batch_size
    texts = [
        CUDA,
        "MPS backend out of memory",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
        "shape mismatch",
    ]
    texts += [
        "DefaultCPUAllocator: can't allocate memory",
        "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
    ]
    errors = [RuntimeError(text) for text in texts] + [ValueError(CUDA), KeyError("x")]
    assert [is_out_of_memory(e) for e in errors] == [decided(e) for e in errors]
    assert is_out_of_memory(torch.OutOfMemoryError("no words"))


class EvaluationLimited(Tiny):
    def forward(self, x, labels=None):
        if not self.training:
            raise torch.OutOfMemoryError(CUDA)
        return super().forward(x, labels)


@pytest.mark.parametrize("automatic", [True, False])
def test_batch_size_search_ignores_evaluations(tmp_path, automatic):
    """As in 5.23: the error propagates, with a note on what to change."""
    torch.manual_seed(3)
    trainer = make_trainer(
        tmp_path, model=EvaluationLimited(), auto_find_batch_size=automatic, eval_strategy="epoch"
    )
    note = note_of(trainer)
    assert "per_device_eval_batch_size=4" in note
    assert "x 4 x 8" in note
    assert trainer._train_batch_size == 4
    with pytest.raises(torch.OutOfMemoryError):
        trainer.evaluate()


class Counting(TrainerCallback, ExportableState):
    """Counts steps, and keeps the count in checkpoints."""

    def __init__(self, start=0):
        self.start, self.count = start, 0

    def on_step_end(self, args, state, control, **kwargs):
        self.count += 1

    def state(self):
        return {"args": {"start": self.start}, "attributes": {"count": self.count}}


@pytest.mark.usefixtures("keeping")
def test_callbacks_with_a_state_are_set_back(tmp_path):
    """And the control, and patience that ran out in the failed attempt."""
    counting, stopping = Counting(), EarlyStoppingCallback(3)
    watching = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    trainer = train(
        tmp_path, limited(4, first=5), **ASKED, callbacks=[counting, stopping], **watching
    )
    assert (
        counting.count
        == trainer.state.global_step
        == len([e for e in trainer.state.log_history if "loss" in e])
    )
    assert stopping in trainer.callback_handler.callbacks


@pytest.mark.usefixtures("keeping")
def test_batch_size_search_resets_an_optimizer_passed_in(tmp_path):
    """With its state, the one that it brought along included."""

    def with_history(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(**{name: value[None] for name, value in points(1)[0].items()})["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    ends = []
    for options in (ASKED, HALVED):
        model = limited(4, first=3)
        ends.append(end_of(train(tmp_path, model, optimizers=with_history(model), **options)))
    assert_same_end(*reversed(ends))


@pytest.mark.parametrize("touched", [True, False])
def test_frozen_weights_are_not_copied(tmp_path, touched):
    """If something changed them nevertheless, they cannot be restored, and the error says so."""
    touch = At("on_step_end", lambda of, *_: torch.nn.init.zeros_(of.model.first.bias), 1)
    model = limited(4, first=2)
    model.first.requires_grad_(False)
    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path, model=model, callbacks=[touch] if touched else None, **ASKED)
    )
    if touched:
        assert "first.bias" in note_of(trainer)
    else:
        trainer.train()
        assert trainer.state.train_batch_size == 4


@pytest.mark.usefixtures("keeping")
def test_batch_size_search_after_a_resumption_restarts_there(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "train_dataset": points(44)}
    train(tmp_path, limited(8), per_device_train_batch_size=8, **options)
    step = str(tmp_path / "checkpoint-4")
    ends = []
    for sizes in (ASKED, HALVED):
        trainer = make_trainer(
            tmp_path / "other", model=limited(4, first=3), num_train_epochs=2, **options, **sizes
        )
        trainer.train(resume_from_checkpoint=step)
        ends.append(trainer)
    searched, halved = ends
    assert searched.state.global_step == halved.state.global_step == 12
    assert same_bits(weights(halved.model), weights(searched.model))
    assert history(halved) == history(searched)
    assert searched.state.train_batch_size == 4


def test_lengths_are_grouped_the_same_way_after_a_resumption(tmp_path):
    """By the batch that was asked for, as in the reference, whatever was found."""
    rows = [{**row, "length": torch.tensor(index * 7 % 11)} for index, row in enumerate(points(44))]
    rows = [{name: value.tolist() for name, value in row.items()} for row in rows]
    data = datasets.Dataset.from_list(rows).with_format("torch")
    options = {**ASKED, "save_strategy": "steps", "save_steps": 3, "train_dataset": data}
    options["train_sampling_strategy"] = "group_by_length"
    whole = train(tmp_path, limited(5), **options)
    resumed = trained_trainer(
        tmp_path,
        model=limited(5),
        num_train_epochs=2,
        **options,
        resume=str(tmp_path / "checkpoint-12"),
    )
    assert same_bits(weights(whole.model), weights(resumed.model))
    assert resumed.model.passes == 18 - 12, "none that failed"
