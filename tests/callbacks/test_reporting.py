"""Names of reporting services, and the callbacks they stand for."""

import pytest
from transformers.integrations import get_reporting_integration_callbacks
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from lightrainer import callbacks
from lightrainer.callbacks import (
    LoggerCallback,
    available_reporting_integrations,
    reporting_callbacks,
)
from lightrainer.callbacks.loggers import availability


@pytest.fixture
def installed(monkeypatch):
    """Say which modules are there."""

    def say(*modules):
        monkeypatch.setattr(availability, "is_installed", lambda name: name in modules)
        monkeypatch.setattr(availability, "is_comet_installed", lambda: "comet_ml" in modules)

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DISABLE_MLFLOW_INTEGRATION", raising=False)
    return say


@pytest.mark.parametrize(
    "report_to", [None, "none", [], "tensorboard", ["wandb", "mlflow"], *availability.TRACKERS]
)
def test_names_stand_for_the_callbacks_of_the_reference(report_to):
    ours = [cls.__name__ for cls in reporting_callbacks(report_to)]
    assert ours == [cls.__name__ for cls in get_reporting_integration_callbacks(report_to)]


def test_report_to_accepts_all_and_none_in_a_list(installed):
    installed("tensorboard", "wandb")
    names = ["TensorBoardCallback", "WandbCallback"]
    assert [cls.__name__ for cls in reporting_callbacks("all")] == names
    assert [cls.__name__ for cls in reporting_callbacks(["wandb", "all", "mlflow"])] == [
        *names,
        "MLflowCallback",
    ]
    assert reporting_callbacks(["none"]) == []


def test_report_to_documented_names_have_a_callback_and_a_package():
    assert set(availability.TRACKERS) == set(INTEGRATION_TO_CALLBACK) - {"neptune"}
    for name, (_, cls, _) in availability.TRACKERS.items():
        assert issubclass(getattr(callbacks, cls), LoggerCallback)
        assert getattr(callbacks, cls).platform == name


def test_report_to_all_includes_only_usable_trackers(installed, monkeypatch):
    installed()
    assert reporting_callbacks("all") == []
    installed(
        "wandb",
        "codecarbon",
        "clearml",
        "swanlab",
        "trackio",
        "dvclive",
        "tensorboardX",
        "flytekit",
    )
    every = ["dvclive", "tensorboard", "wandb", "codecarbon", "clearml", "swanlab", "trackio"]
    assert available_reporting_integrations() == every
    installed("azureml.core.run", "mlflow", "dagshub")
    assert available_reporting_integrations() == ["mlflow"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://dagshub.com/me/repository.mlflow")
    assert available_reporting_integrations() == ["dagshub"]
    monkeypatch.setenv("DISABLE_MLFLOW_INTEGRATION", "TRUE")
    assert available_reporting_integrations() == ["azure_ml"]


def test_report_to_all_includes_comet_with_a_key_or_offline(installed, monkeypatch):
    installed("comet_ml")
    monkeypatch.setenv("COMET_API_KEY", "key")
    assert available_reporting_integrations() == ["comet_ml"]
    monkeypatch.delenv("COMET_API_KEY")
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    assert available_reporting_integrations() == ["comet_ml"]


def test_report_to_unknown_name_is_refused_with_suggestions():
    with pytest.raises(
        ValueError,
        match=r"'tensorbord'.*Did you mean 'tensorboard'\?.*azure_ml, .*wandb, all, none",
    ):
        reporting_callbacks(["tensorbord"])
