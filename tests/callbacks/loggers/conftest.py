"""Hide the environment's settings from the trackers."""

import os

import pytest

TRACKERS = (
    "WANDB MLFLOW HF_MLFLOW DISABLE_MLFLOW COMET CLEARML SWANLAB TENSORBOARD HF_DAGSHUB BRANCH DVC "
    "HF_DVCLIVE"
)
TRACKERS = (*TRACKERS.split(), "TRACKIO", "CODECARBON", "AZUREML")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(TRACKERS):
            monkeypatch.delenv(name)
    quiet = {
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_ERROR_REPORTING": "false",
        "DVC_NO_ANALYTICS": "1",
    }
    quiet |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "CODECARBON_LOG_LEVEL": "error",
    }
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
