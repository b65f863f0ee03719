"""`LossModule` under a plain `lightning.Trainer`; `tests/parity/test_plain_lightning.py`
compares its numbers.
"""

import types
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from helpers.lightning.tiny_modules import Net, Seen, make_trainer, points, seeded
from lightrainer import BatchMetrics, LossModule, TokenLoss, Trainer, TrainingArguments
from lightrainer.lightning_modules.optim import OptimizerConfig
from lightrainer.lightning_modules.optim.schedules import ScheduleConfig


def loader(count=22, seed=0):
    return DataLoader(points(count, seed), batch_size=4)


def make_module(**kwargs):
    return LossModule(seeded(Net), **kwargs)


def test_schedules_that_wait_for_a_metric_watch_the_validation_loss():
    """The rate is halved after each epoch in which it did not get better: here it never does."""
    settings = {"factor": 0.5, "patience": 0, "threshold": 1e9, "mode": "max"}
    schedule = ScheduleConfig(name="reduce_lr_on_plateau", kwargs=settings)
    module, recorder = (
        make_module(optimizer=OptimizerConfig(learning_rate=1e-3), schedule=schedule),
        Seen(),
    )
    make_trainer(max_epochs=3, callbacks=[recorder]).fit(module, loader(8), loader(6, seed=1))
    assert recorder.rates == [1e-3] * 4 + [5e-4] * 2
    config = module.configure_optimizers()["lr_scheduler"]
    assert (config["monitor"], config["interval"]) == ("val_loss", "epoch")
    by_step = {"monitor": "train_loss", "schedule_interval": "step"}
    stepped, trainer = make_module(schedule=schedule, **by_step), make_trainer(max_epochs=2)
    trainer.fit(stepped, loader(16))
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == trainer.global_step == 8


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: (x.mean(), x, 2 * x), "(x, 2x)"),
        (lambda x: {"loss": x.mean(), "a": x, "b": 2 * x}, "(x, 2x)"),
        (lambda x: (x.mean(), x), "x"),
        (lambda x: types.SimpleNamespace(loss=x.mean(), logits=x), "x"),
    ],
)
def test_predictions_of_every_form_of_outputs(make, expected):
    """As `Trainer.predict` gives them: several in a tuple, one by itself."""

    class Model(nn.Module):
        def forward(self, x):
            return make(x)

    rows = torch.randn(3, 4)
    (predictions,) = make_trainer().predict(
        LossModule(Model()), DataLoader([{"x": row} for row in rows], batch_size=3)
    )
    torch.testing.assert_close(predictions, (rows, 2 * rows) if expected == "(x, 2x)" else rows)


@pytest.mark.parametrize("form", ["described", "function"])
def test_schedules_by_step_of_other_libraries(form):
    """A described class and a function; a schedule that counts steps warns where it is stepped
    by epoch.
    """
    init = {"max_lr": 0.1, "total_steps": 16}
    schedule = {
        "described": {"class_path": "torch.optim.lr_scheduler.OneCycleLR", "init_args": init},
        "function": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, **init),
    }[form]
    trainer = make_trainer()
    trainer.fit(make_module(schedule=schedule, schedule_interval="step"), loader())
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == trainer.global_step == 12
    with pytest.warns(UserWarning, match=r"OneCycleLR .*schedule_interval="):
        make_module(schedule=schedule).configure_optimizers()


def accuracy(model, data):
    with torch.no_grad():
        predicted = model(torch.stack([item["x"] for item in data]))["logits"].argmax(-1)
    return pytest.approx(
        float((predicted == torch.stack([item["labels"] for item in data])).float().mean())
    )


MICRO = MulticlassAccuracy(3, average="micro")
METRICS = {
    "MulticlassAccuracy": MICRO,
    "acc": MetricCollection({"acc": MICRO, "f1": MulticlassF1Score(3)}),
    "right": {"right": MICRO, "loss_by_token": TokenLoss()},
    "function": {
        "function": lambda logits, labels: (logits.argmax(-1) == labels).float().mean().item()
    },
    "own": BatchMetrics(
        {"own": MICRO}, lambda predictions, labels: (predictions.argmax(-1), labels)
    ),
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("stage", ["val", "test"])
def test_metrics_over_the_whole_epoch(name, stage):
    module, trainer = make_module(metrics=METRICS[name]), make_trainer()
    for seed in (1, 2):  # the counts of the first epoch are forgotten
        run = trainer.validate if stage == "val" else trainer.test
        (logged,) = run(module, loader(10, seed), verbose=False)
        assert logged[f"{stage}_{name}"] == accuracy(module.model, points(10, seed))
        assert f"{stage}_loss" in logged


def per_class(logits, labels):
    return torch.bincount(labels, minlength=3).float()


def test_vectors_are_logged_entry_by_entry_and_matrices_are_named(caplog):
    metrics = {"count": per_class, "confusion": MulticlassConfusionMatrix(3)}
    module, labels = (
        make_module(metrics=metrics),
        torch.stack([item["labels"] for item in points(10)]),
    )
    loaders = [loader(10), loader(10)]
    logged = make_trainer().validate(module, loaders, verbose=False)[1]
    counts = [logged[f"val_count_{index}/dataloader_idx_1"] for index in range(3)]
    assert counts == torch.bincount(labels, minlength=3).tolist()
    warnings = [
        record.getMessage() for record in caplog.records if "confusion" in record.getMessage()
    ]
    assert len(warnings) == 2, "one for each loader"
    assert "(3, 3)" in warnings[0]


class Stream(IterableDataset):
    """Samples without a length."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


@pytest.mark.parametrize("verb", ["validate", "test", "fit"])
@pytest.mark.parametrize("kind", ["dict", "list", "without length"])
def test_loss_module_separates_results_of_several_sets(verb, kind, tmp_path):
    """Lightning would add what is logged at the end of the epoch to the results of every set."""
    stage = "test" if verb == "test" else "val"
    sets = [points(10), points(7, seed=4)]
    wrapped = [Stream(samples) if kind == "without length" else samples for samples in sets]
    loaders = [DataLoader(samples, batch_size=4) for samples in wrapped]
    names = [f"{stage}_right/dataloader_idx_{index}" for index in range(2)]
    if kind == "dict":
        loaders = dict(zip(("near", "far"), loaders, strict=True))
        names = [f"{stage}_near_right", f"{stage}_far_right"]

    module, logger = make_module(metrics={"right": MICRO}), CSVLogger(tmp_path)
    trainer = make_trainer(logger=logger, num_sanity_val_steps=1, max_epochs=1)
    if verb == "fit":
        trainer.fit(module, loader(), loaders)
    else:
        results = getattr(trainer, verb)(module, loaders, verbose=False)
        assert [[name for name in names if name in result] for result in results] == [
            [name] for name in names
        ]
        assert [len(result) for result in results] == [2, 2], "loss and metric"

    logged = (Path(logger.log_dir) / "metrics.csv").read_text()
    assert all(name in logged for name in names)
    for name, samples in zip(names, sets, strict=True):
        assert float(trainer.callback_metrics[name]) == accuracy(module.model, samples)


@pytest.mark.parametrize(
    "metrics",
    [{"loss": MICRO}, MetricCollection({"loss": MICRO}), {"loss": lambda logits, labels: 1.0}],
)
def test_loss_module_refuses_a_metric_named_loss(metrics):
    """It would be logged as val_loss, or train_loss, which checkpoints and early stopping watch."""
    for argument in ("metrics", "train_metrics"):
        with pytest.raises(ValueError, match="'loss'"):
            make_module(**{argument: metrics})


def test_metrics_in_a_fit():
    """Logged after each epoch, of which the sanity check is none; nothing of them is in a
    checkpoint.
    """
    metrics = {
        "acc": MICRO,
        "rows": lambda logits, labels: len(labels),
        "confusion": MulticlassConfusionMatrix(3),
    }
    module, trainer = (
        make_module(metrics=metrics, train_metrics=True),
        make_trainer(num_sanity_val_steps=1),
    )
    trainer.fit(module, loader(8), loader(6, seed=2))
    logged = trainer.callback_metrics
    assert float(logged["val_acc"]) == accuracy(module.model, points(6, seed=2))
    assert (logged["train_rows"], logged["val_rows"]) == (8, 6)
    assert "val_confusion" not in logged, "it is not a number and cannot be logged"
    assert module.metric_values["val_confusion"].sum() == 6
    assert {name.partition(".")[0] for name in module.state_dict()} == {"model"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": {"lr": 0.1}}, "`optimizer` has no field 'lr'. Use 'learning_rate'."),
        ({"optimizer": {"eps": 1e-6}}, "`optimizer` has no field 'eps'. Use 'epsilon'."),
        ({"optimizer": {"betas": (0.9, 0.99)}}, "Use 'beta1' and 'beta2'."),
        ({"optimizer": {"learning_rates": 0.1}}, "Did you mean 'learning_rate'?"),
        ({"schedule": {"warmup": 3}}, "Did you mean 'warmup_steps'?"),
    ],
)
def test_unknown_fields_are_named(wrong, message):
    with pytest.raises(ValueError, match=" has no ") as raised:
        make_module(**wrong)
    assert message in str(raised.value)


def test_objects_that_a_function_has_to_make_are_refused():
    model = seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"optimizer=lambda groups: SGD\(groups, \.\.\.\)"):
        LossModule(model, optimizer=optimizer)
    with pytest.raises(TypeError, match=r"schedule=lambda optimizer: StepLR\(optimizer, \.\.\.\)"):
        LossModule(model, schedule=torch.optim.lr_scheduler.StepLR(optimizer, 1))


class LogitsOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_loss_module_names_a_missing_loss_function_for_dict_batches(verb):
    with pytest.raises(TypeError, match=r"does not accept \(x, labels\).*pass a `loss_fn`"):
        getattr(make_trainer(), verb)(LossModule(LogitsOnly()), loader())


def test_names_in_logs_with_another_separator(tmp_path):
    """What watches the validation loss by itself follows; the names are in checkpoints."""
    plateau = ScheduleConfig(name="reduce_lr_on_plateau")
    options = {
        "metrics": {"right": MICRO},
        "train_metrics": True,
        "log_separator": "/",
        "schedule": plateau,
    }
    module, trainer = make_module(**options), make_trainer()
    trainer.fit(module, loader(), loader(6))
    assert set(trainer.callback_metrics) == {"train/loss", "train/right", "val/loss", "val/right"}
    assert set(module.metric_values) == {"train/right", "val/right"}
    assert trainer.lr_scheduler_configs[0].monitor == "val/loss"
    results = trainer.test(module, {"near": loader(6), "far": loader(6, seed=4)}, verbose=False)
    assert [set(result) for result in results] == [
        {f"test/{s}_loss", f"test/{s}_right"} for s in ("near", "far")
    ]
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    again = LossModule.load_from_checkpoint(
        tmp_path / "module.ckpt", model=Net(), weights_only=True
    )
    assert (again.log_separator, again.monitor) == ("/", "val/loss")


@pytest.mark.parametrize("accumulated", [1, 2])
def test_loss_module_epoch_loss_is_a_mean_over_samples(accumulated):
    """The last batch has two samples; without a step of the optimizer the mean is the loss of
    all.
    """
    module = make_module(train_loss_on_epoch=True, optimizer={"learning_rate": 0.0})
    trainer = make_trainer(max_epochs=1, accumulate_grad_batches=accumulated)
    trainer.fit(module, loader(10))
    batch = torch.utils.data.default_collate(points(10))
    expected = module.model(**batch)["loss"].item()
    assert float(trainer.callback_metrics["train_loss_epoch"]) == pytest.approx(expected, rel=1e-5)
    assert float(trainer.callback_metrics["train_loss"]) != pytest.approx(expected, rel=1e-3)


def test_loss_module_validation_loss_weighs_batches_by_their_samples(tmp_path):
    """As the Trainer's `eval_loss`; the last batch has two samples of ten."""
    module = make_module()
    (logged,) = make_trainer().validate(module, loader(10), verbose=False)
    args = TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=4, report_to="none", use_cpu=True
    )
    trainer = Trainer(module.model, args, eval_dataset=points(10))
    assert logged["val_loss"] == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-6)

    with torch.no_grad():
        losses = [module.model(**batch)["loss"] for batch in loader(10)]
    weighted = (4 * losses[0] + 4 * losses[1] + 2 * losses[2]) / 10
    assert logged["val_loss"] == pytest.approx(weighted.item(), rel=1e-6)
    assert logged["val_loss"] != pytest.approx(sum(losses).item() / 3, rel=1e-6)
