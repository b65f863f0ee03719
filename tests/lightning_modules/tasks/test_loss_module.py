"""Any model that returns a loss trains under `lightning.Trainer`, with Lightning's own features."""

import math
import types

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader

from lightrainer.lightning_modules.internals import lightning_internals
from lightrainer.lightning_modules.optim import OptimizerConfig
from lightrainer.lightning_modules.optim.schedules import ScheduleConfig
from lightrainer.lightning_modules.tasks.loss_module import LossModule

pytestmark = [
    # torch 2.13 warns of what Lightning 2.6 does with its trees (2025).
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    # Lightning advises more workers on machines with many cores.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # It says so where a module could validate and is not asked to.
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Net(nn.Module):
    """A normalised regression with dropout; returns its loss in one of the usual forms."""

    def __init__(self, form="dict"):
        super().__init__()
        self.form = form
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x, y=None):
        logits = self.layers(x).squeeze(-1)
        loss = None if y is None else nn.functional.mse_loss(logits, y)
        return {"dict": {"loss": loss, "logits": logits}, "tuple": (loss, logits)}[self.form]


def samples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=generator)
    return [{"x": row, "y": row.sum() + 2} for row in rows]


def loader(count=22, batch_size=3, seed=0):
    return DataLoader(samples(count, seed), batch_size=batch_size)


def make_trainer(**kwargs):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "max_epochs": 2, "accelerator": "cpu", "num_sanity_val_steps": 0}
    with lightning_internals.quiet():
        return Trainer(**{**options, **kwargs})


@pytest.fixture(autouse=True)
def _quiet_and_single_threaded():
    """Sums in several threads may be added in another order: one thread makes bitwise claims fair."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with lightning_internals.quiet():
        yield
    torch.set_num_threads(before)


def make_module(**kwargs):
    torch.manual_seed(1)
    return LossModule(Net(kwargs.pop("form", "dict")), **kwargs)


class LearningRates(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, *args):
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


OPTIMIZER = OptimizerConfig(learning_rate=0.05, weight_decay=0.1)


def train_by_hand(epochs=2, accumulation=3, clip=0.3, warmup=2):
    """The same training without Lightning; the last step of an epoch may have fewer micro-batches."""
    torch.manual_seed(1)
    model = Net()
    decaying = [model.layers[0].weight, model.layers[3].weight]
    others = [model.layers[0].bias, model.layers[1].weight, model.layers[1].bias, model.layers[3].bias]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.05, betas=(0.9, 0.999), eps=1e-8, fused=True)
    batches = loader()
    total = epochs * math.ceil(len(batches) / accumulation)
    norms, step = [], 0
    model.train()
    for _ in range(epochs):
        for index, batch in enumerate(batches):
            in_step = min(accumulation, len(batches) - index // accumulation * accumulation)
            (model(**batch)["loss"] / in_step).backward()
            if (index + 1) % accumulation and index + 1 < len(batches):
                continue
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
            factor = step / warmup if step < warmup else (total - step) / (total - warmup)
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * factor
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    assert step == total
    assert max(norms) > clip, "the clipping does something"
    return model


def train_with_lightning(clip=0.3, form="dict", accumulation=3):
    schedule = ScheduleConfig(name="linear", warmup_steps=2)
    module = make_module(optimizer=OPTIMIZER, schedule=schedule, form=form)
    trainer = make_trainer(accumulate_grad_batches=accumulation, gradient_clip_val=clip)
    trainer.fit(module, loader())
    assert trainer.global_step == 2 * math.ceil(8 / accumulation)
    return module.model


@pytest.mark.parametrize("form", ["dict", "tuple"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_weights_equal_those_of_a_loop_by_hand(form, accumulation):
    """Bit for bit: accumulation, clipping, weight decay by groups, dropout, a linear schedule."""
    expected, trained = train_by_hand(accumulation=accumulation), train_with_lightning(0.3, form, accumulation)
    for (name, theirs), ours in zip(expected.named_parameters(), trained.parameters(), strict=True):
        assert torch.equal(theirs, ours), name


def test_comparison_can_fail():
    """Negative control: without clipping the weights differ."""
    expected, trained = train_by_hand(), train_with_lightning(clip=None)
    assert not torch.equal(expected.layers[0].weight, trained.layers[0].weight)


def test_length_of_the_training_is_the_length_of_the_schedule():
    """With accumulation: six steps, from the full rate to none."""
    module = make_module(optimizer=OPTIMIZER, schedule=ScheduleConfig(name="linear"))
    rates = LearningRates()
    make_trainer(accumulate_grad_batches=3, callbacks=[rates]).fit(module, loader())
    steps = [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6]
    assert rates.seen == pytest.approx([0.05 * (6 - step) / 6 for step in steps])
    assert module.schedule_config.total_steps is None, "the configuration is left as it was"


def test_default_optimizer_is_the_documented_one():
    module = make_module()
    optimizer = module.configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 5e-5
    assert optimizer.defaults["fused"]


@pytest.mark.parametrize(("name", "more"), [("reduce_lr_on_plateau", {}), ("greedy", {"min_lr": 0, "max_lr": 1e-3})])
def test_schedules_that_wait_for_a_metric_watch_the_validation_loss(name, more):
    """The rate is halved after each epoch in which it did not get better: here it never does."""
    settings = {"factor": 0.5, "patience": 0, "threshold": 1e9, "mode": "max", **more}
    schedule = ScheduleConfig(name=name, kwargs=settings)
    module = make_module(optimizer=OptimizerConfig(learning_rate=1e-3), schedule=schedule)
    rates = LearningRates()
    make_trainer(max_epochs=3, callbacks=[rates]).fit(module, loader(6), loader(6, seed=1))
    assert rates.seen == [1e-3] * 4 + [5e-4] * 2
    config = module.configure_optimizers()["lr_scheduler"]
    assert (config["monitor"], config["interval"]) == ("val_loss", "epoch")


def test_plateau_schedule_without_validation_is_an_error():
    module = make_module(schedule=ScheduleConfig(name="reduce_lr_on_plateau"))
    with pytest.raises(MisconfigurationException, match="val_loss"):
        make_trainer(max_epochs=1).fit(module, loader(6))


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_each_sample_counts_the_same(verb):
    """The last batch of three is smaller; the loss is that of all seven samples, in eval mode."""
    module, trainer = make_module(), make_trainer()
    results = getattr(trainer, verb)(module, loader(7), verbose=False)
    module.eval()
    whole = next(iter(loader(7, batch_size=7)))
    with torch.no_grad():
        expected = float(module.model(**whole)["loss"])
    name = {"validate": "val_loss", "test": "test_loss"}[verb]
    assert results == [{name: pytest.approx(expected, rel=1e-5)}]
    by_batch = [float(module.model(**batch)["loss"].detach()) for batch in loader(7)]
    assert sum(by_batch) / 3 != pytest.approx(expected, rel=1e-3), "a mean over batches would be another number"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: (x.mean(), x, 2 * x), "(x, 2x)"),
        (lambda x: {"loss": x.mean(), "a": x, "b": 2 * x}, "(x, 2x)"),
        (lambda x: (x.mean(), x), "x"),
        (lambda x: types.SimpleNamespace(loss=x.mean(), logits=x), "x"),
        (lambda x: x, "x"),
    ],
)
def test_predictions_of_every_form_of_outputs(make, expected):
    """As `Trainer.predict` gives them: several in a tuple, one by itself."""

    class Model(nn.Module):
        def forward(self, x):
            return make(x)

    rows = torch.randn(3, 4)
    (found,) = make_trainer().predict(LossModule(Model()), DataLoader([{"x": row} for row in rows], batch_size=3))
    wanted = (rows, 2 * rows) if expected == "(x, 2x)" else rows
    torch.testing.assert_close(found, wanted)


def test_state_dict_round_trip(tmp_path):
    """By hand, and through a checkpoint of Lightning; the model's own names are below `model.`."""
    module = make_module()
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, loader())
    assert [name.split(".")[0] for name in module.state_dict()] == ["model"] * 6
    fresh = LossModule(Net())
    assert not torch.equal(fresh.model.layers[0].weight, module.model.layers[0].weight)
    fresh.load_state_dict(module.state_dict())
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = LossModule.load_from_checkpoint(tmp_path / "model.ckpt", model=Net())
    for name, value in module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
def test_model_without_a_loss_is_an_error(verb):
    """Which says what the model returned and what it was given."""
    data = DataLoader([{"x": sample["x"]} for sample in samples(4)], batch_size=2)
    message = "did not return a loss from the inputs: it returned a dict with loss, logits. It was given: x"
    with pytest.raises(ValueError, match=message):
        getattr(make_trainer(), verb)(make_module(), data)


@pytest.mark.parametrize("form", ["described", "function"])
def test_schedules_by_step_of_other_libraries(form):
    """A described class and a function; a schedule that counts steps warns where it is stepped by epoch."""
    init = {"max_lr": 0.1, "total_steps": 16}
    described = {"class_path": "torch.optim.lr_scheduler.OneCycleLR", "init_args": init}
    schedule = (
        described if form == "described" else lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, **init)
    )
    trainer = make_trainer()
    trainer.fit(make_module(schedule=schedule, schedule_interval="step"), loader())
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == trainer.global_step > 2
    with pytest.warns(UserWarning, match=r'OneCycleLR counts optimizer steps.*schedule_interval="step"'):
        make_module(schedule=schedule).configure_optimizers()
