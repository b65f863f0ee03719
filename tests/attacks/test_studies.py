"""The storage of a study may be written by others: what a sampler keeps in it runs no program."""

import logging
import pickle
import re
from pathlib import Path

import numpy as np
import optuna
import pytest

from lightrainer.facade.search.samplers import (
    make_safe_cma_sampler,
    make_sampler,
    require_cma_state,
)
from lightrainer.facade.search.storages import open_storage

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
SPACE = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in ("a", "b")}


@pytest.fixture
def study(tmp_path):
    logging.getLogger("optuna").setLevel(logging.WARNING)
    study = optuna.create_study(storage=open_storage(str(tmp_path / "study.log")), study_name="s")
    for value in (0.1, 0.2):
        study.add_trial(
            optuna.create_trial(params={"a": value, "b": value}, distributions=SPACE, value=value)
        )
    return study


@pytest.mark.parametrize(
    "disguise",
    [{}, {"cma:optimizer:00": pickle.dumps(np.zeros(2)).hex(), "cma:optimizer:999": ""}],
)
def test_study_sampler_runs_no_program(study, evil, disguise):
    """Not where the pieces of a harmless state are among those of the other either."""
    text = pickle.dumps(evil).hex()
    pieces = {
        f"cma:optimizer:{start // 40}": text[start : start + 40]
        for start in range(0, len(text), 40)
    }
    values, states = dict.fromkeys(SPACE, 0.2), {**pieces, **disguise}
    study.add_trial(
        optuna.create_trial(params=values, distributions=SPACE, value=0.3, system_attrs=states)
    )
    sampler = make_safe_cma_sampler(seed=1)
    with pytest.raises(
        ValueError, match=r"trial 2 holds a state of the sampler that refers to \w+\.mkdir"
    ):
        sampler.sample_relative(study, study.ask(), SPACE)
    assert not evil.has_run


@pytest.mark.parametrize("state", ["zz", "80", pickle.dumps({}).hex()[:-4]])
def test_study_with_damaged_state_is_named(state):
    with pytest.raises(ValueError, match="trial 7 holds a damaged state of the sampler"):
        require_cma_state(state, 7)


def test_study_with_valid_states_resumes(study):
    cmaes = pytest.importorskip("cmaes", reason="the sampler's own package is not installed")
    for kind in (cmaes.CMA, cmaes.SepCMA):
        made = kind(mean=np.zeros(2), sigma=1.0, seed=1)
        made.tell([(made.ask(), float(index)) for index in range(made.population_size)])
        require_cma_state(pickle.dumps(made).hex(), 0)
    study.sampler = make_sampler("cmaes", 1)
    study.optimize(
        lambda trial: trial.suggest_float("a", 0, 1) + trial.suggest_float("b", 0, 1), n_trials=12
    )
    kept = {key for trial in study.get_trials() for key in trial.system_attrs if "optimizer" in key}
    assert kept == {"cma:optimizer:0"} or len(kept) > 1


def test_optuna_samplers_that_unpickle_are_all_known():
    """If a later one does, it has to be looked at here."""
    folder = Path(optuna.__file__).parent
    found = {
        path.name
        for path in folder.glob("samplers/**/*.py")
        if re.search(r"pickle\.loads?\(", path.read_text())
    }
    assert found == {"_cmaes.py"}
