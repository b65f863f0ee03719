"""The storage of a study may be written by others: what a sampler keeps in it runs no program."""

import re
from pathlib import Path

import optuna

from lightrainer.facade.search.samplers import _SAMPLERS


def test_optuna_samplers_that_unpickle_are_not_those_of_a_sweep():
    """If a later one does, it has to go from the table."""
    folder = Path(optuna.__file__).parent
    file_names = {
        path.name
        for path in folder.glob("samplers/**/*.py")
        if re.search(r"pickle\.loads?\(", path.read_text())
    }
    assert file_names == {"_cmaes.py"}
    assert "CmaEsSampler" not in _SAMPLERS.values()
