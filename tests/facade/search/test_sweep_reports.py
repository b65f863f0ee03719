"""A plain `lightning.Trainer` in the process of a sweep's trial."""

import importlib.metadata
import json
from types import SimpleNamespace

import lightning
import optuna
import pytest
import torch
from torch.utils.data import DataLoader

from lightrainer.facade.arguments.sweep_trial import VARIABLE, ChildTrial
from lightrainer.facade.search import sweep_reports
from lightrainer.facade.search.sweep_reports import PrunedBySweep

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch):
        return (self.weight * batch).pow(2).mean()

    def validation_step(self, batch):
        self.log_dict({"val_loss": self.weight.item(), "val_f1": 0.5})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Train for two epochs of four steps, as a trial of a study; returns what the sweep finds."""

    def run(callbacks=(), before=(), **about):
        storage = f"sqlite:///{tmp_path / 'study.db'}"
        study = optuna.create_study(storage=storage, study_name="s")
        for value in before:
            study.add_trial(optuna.create_trial(value=value, intermediate_values={1: value, 2: value}))
        trial = study.ask()
        result = tmp_path / "result.json"
        told = {"storage": storage, "study": "s", "number": trial.number, "run_name": "run"}
        about = ChildTrial(**{**told, "metrics": ["val_loss"], "result": str(result), **about})
        monkeypatch.setenv(VARIABLE, about.as_json())
        monkeypatch.setattr(sweep_reports, "_process", {})
        # Fixtures of other folders, which last as long as the session, leave this package's entry point out.
        monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", importlib.metadata.entry_points)
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            **options,
            enable_model_summary=False,
            callbacks=list(callbacks),
            accelerator="cpu",
            max_epochs=2,
            val_check_interval=2,
            default_root_dir=tmp_path,
        )
        data = DataLoader(torch.ones(4, 1))
        try:
            trainer.fit(Module(), data, data)
        except SystemExit as end:
            return SimpleNamespace(end=end, study=study, **json.loads(result.read_text()))
        return SimpleNamespace(end=None, study=study, **json.loads(result.read_text()))

    return run


def test_a_trial_is_pruned_after_an_epoch(fit):
    found = fit(pruner="median:n_startup_trials=1", unit="epochs", before=[0.01])
    assert isinstance(found.end, PrunedBySweep)
    assert [place for place, *_ in found.values] == [None, 1]
    assert found.pruned == "epoch 1"
    assert list(found.study.trials[-1].intermediate_values) == [1]


def test_values_that_the_script_does_not_take(fit):
    with pytest.raises(ValueError, match=r"training arguments \(learning_rate\)"):
        fit(values={"learning_rate": 0.1})


def test_there_is_none_outside_of_a_sweep():
    assert "SweepReports" not in str(lightning.Trainer(logger=False, accelerator="cpu").callbacks)
