"""Functions and classes of the reference that scripts import: ours take the same arguments."""

import inspect

import pytest
from transformers import hf_argparser as their_parser
from transformers import trainer_optimizer, trainer_pt_utils, trainer_utils, training_args

from lightrainer.facade.compat import (
    arguments,
    checkpoints,
    memory,
    models,
    nested,
    processes,
    samplers,
)
from lightrainer.facade.search import hyperparameters

PAIRS = {
    arguments: (training_args, trainer_utils, their_parser),
    checkpoints: (trainer_utils, trainer_pt_utils),
    hyperparameters: (trainer_utils,),
    memory: (trainer_utils, trainer_pt_utils),
    models: (trainer_utils, trainer_pt_utils, trainer_optimizer),
    nested: (trainer_pt_utils,),
    processes: (trainer_utils, trainer_pt_utils),
    samplers: (trainer_pt_utils,),
}


@pytest.mark.parametrize("ours", PAIRS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_parameters_have_the_same_names_and_order(ours):
    """Of each function and class that both have; ours may take more after them."""
    compared = 0
    for name, function in vars(ours).items():
        found = next((getattr(module, name) for module in PAIRS[ours] if hasattr(module, name)), None)
        is_own = getattr(function, "__module__", "") == ours.__name__
        if found is None or not is_own or not (inspect.isfunction(function) or inspect.isclass(function)):
            continue
        wanted = list(inspect.signature(found).parameters)
        assert list(inspect.signature(function).parameters)[: len(wanted)] == wanted, name
        compared += 1
    assert compared > 0
