"""Trials of an earlier study, as a beginning of a new one."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from lightrainer.facade.search.earlier_trials import ORIGIN, add_earlier_trials, load_earlier


def space(trial):
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return {
        "kind": kind,
        **({"rate": trial.suggest_float("rate", 0.0, 1.0)} if kind == "a" else {}),
    }


def earlier(storage=None, name="older"):
    """Two trials that the space could have, and three that it could not."""
    study = optuna.create_study(study_name=name, storage=storage)
    points = [{"kind": "a", "rate": 0.5}, {"kind": "b"}, {"kind": "a", "rate": 7.0}, {"kind": "c"}]
    points.append({"kind": "b", "rate": 0.5})
    wide = {"kind": CategoricalDistribution(["a", "b", "c"]), "rate": FloatDistribution(0.0, 9.0)}
    for value, params in enumerate(points):
        given = {
            "distributions": {name: wide[name] for name in params},
            "intermediate_values": {1: float(value)},
        }
        study.add_trial(optuna.create_trial(params=params, value=value, **given))
    return study


def test_earlier_trials_inside_the_space_are_added_once():
    study = optuna.create_study()
    assert add_earlier_trials(study, earlier(), space) == (2, 3)
    assert add_earlier_trials(study, earlier(), space) == (0, 3)
    third = optuna.create_study()
    # they keep the name of the study that ran them
    assert add_earlier_trials(third, study, space) == (2, 0)
    for one in (study, third):
        assert [trial.user_attrs[ORIGIN] for trial in one.trials] == ["older 0", "older 1"]
        assert [trial.params for trial in one.trials] == [
            {"kind": "a", "rate": 0.5},
            {"kind": "b"},
        ]
        assert [trial.intermediate_values for trial in one.trials] == [{1: 0.0}, {1: 1.0}]
        assert one.best_value == 0.0


def test_earlier_study_is_found_by_its_address(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    earlier(storage)
    for address in (str(tmp_path), storage, f"{storage}#older"):
        assert load_earlier(address).study_name == "older"
    earlier(storage, "another")
    assert load_earlier(f"{tmp_path}#another").study_name == "another"
    for address, error, match in (
        (str(tmp_path), ValueError, "older, another"),
        (f"{tmp_path}#oldest", ValueError, "oldest.*older, another"),
        (f"sqlite:///{tmp_path}/none.db", FileNotFoundError, "none.db"),
    ):
        with pytest.raises(error, match=match):
            load_earlier(address)
    assert [file.name for file in tmp_path.iterdir()] == ["study.db"]
