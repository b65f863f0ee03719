"""A plain `lightning.Trainer` in the process of a sweep's trial."""

import importlib.metadata
import json

import lightning
import optuna
import pytest
import torch
from torch.utils.data import DataLoader

from lightrainer.facade.arguments.sweep_trial import VARIABLE, ChildTrial
from lightrainer.facade.search import sweep_reports
from lightrainer.facade.search.sweep_reports import EndedBySweep

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch):
        return (self.weight * batch).pow(2).mean()

    def validation_step(self, batch):
        self.log("val_loss", self.weight.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_sweep_reports_prune_at_a_step(tmp_path, monkeypatch):
    """Two epochs of four steps, beside a trial that was better."""
    storage, result = f"sqlite:///{tmp_path / 'study.db'}", tmp_path / "result.json"
    study = optuna.create_study(storage=storage, study_name="s")
    study.add_trial(optuna.create_trial(value=0.01, intermediate_values={2: 2.0, 4: 0.01}))
    told = {
        "storage": storage,
        "study": "s",
        "number": study.ask().number,
        "run_name": "run",
    }
    told |= {"metrics": ["val_loss"], "result": str(result), "pruner": "median:n_startup_trials=1"}
    # Fixtures of other folders, which last as long as the session, leave this package's entry point
    # out.
    monkeypatch.setattr(
        "lightning.fabric.utilities.registry.entry_points", importlib.metadata.entry_points
    )
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    data = DataLoader(torch.ones(4, 1))
    for values, error, match in (
        ({}, EndedBySweep, ""),
        (
            {"learning_rate": 0.1},
            ValueError,
            r"\(learning_rate\)",
        ),
    ):
        monkeypatch.setenv(VARIABLE, ChildTrial(**told, values=values).as_json())
        monkeypatch.setattr(sweep_reports, "_trial_state", sweep_reports._TrialState())
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=2, val_check_interval=2, **quiet)
        with pytest.raises(error, match=match):
            trainer.fit(Module(), data, data)
    found = json.loads(result.read_text())
    assert ([step for step, *_ in found["values"]], found["pruned_at"]) == ([2, 4], 4)
    assert list(study.trials[-1].intermediate_values) == [2, 4]
