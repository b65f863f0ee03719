"""Names of reporting services, and the callbacks they stand for."""

import pytest
from transformers.integrations import get_reporting_integration_callbacks

from lightrainer.callbacks import (
    TensorBoardCallback,
    TrainerCallback,
    available_reporting_integrations,
    reporting,
    reporting_callbacks,
)


@pytest.mark.parametrize("report_to", [None, "none", [], "tensorboard", ["tensorboard"], ["none"], "all", ["all"]])
def test_names_stand_for_the_callbacks_of_the_reference(report_to):
    ours = [cls.__name__ for cls in reporting_callbacks(report_to)]
    if report_to in ("all", ["all"]):
        assert ours == ["TensorBoardCallback"]
    elif report_to == ["none"]:  # the reference turns this into [] in its arguments
        assert ours == []
    else:
        assert ours == [cls.__name__ for cls in get_reporting_integration_callbacks(report_to)]


def test_a_name_twice_gives_one_callback():
    assert reporting_callbacks(["tensorboard", "tensorboard"]) == [TensorBoardCallback]


def test_every_name_stands_for_a_callback_and_has_a_package():
    assert set(reporting._CALLBACKS) == set(reporting._PACKAGES) == {"tensorboard"}
    assert all(issubclass(cls, TrainerCallback) for cls in reporting._CALLBACKS.values())


def test_all_takes_only_what_is_installed(monkeypatch):
    assert available_reporting_integrations() == ["tensorboard"]
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    assert available_reporting_integrations() == []
    assert reporting_callbacks("all") == []


def test_an_unknown_name_is_refused_with_the_nearest_and_all_others():
    with pytest.raises(ValueError, match=r"'tensorbord'.*Did you mean 'tensorboard'\?.*tensorboard, all, none"):
        reporting_callbacks(["tensorbord"])
    with pytest.raises(ValueError, match=r"'wandb'.*There are: tensorboard, all, none.*of your own"):
        reporting_callbacks("wandb")
