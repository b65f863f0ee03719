"""The named choices of the API."""

from enum import Enum

import pytest
import transformers.debug_utils
import transformers.trainer_utils
import transformers.training_args

from lightrainer.facade.arguments import enums

REFERENCE = {
    "IntervalStrategy": transformers.trainer_utils.IntervalStrategy,
    "SaveStrategy": transformers.trainer_utils.SaveStrategy,
    "HubStrategy": transformers.trainer_utils.HubStrategy,
    "FSDPOption": transformers.trainer_utils.FSDPOption,
    "HPSearchBackend": transformers.trainer_utils.HPSearchBackend,
    "SchedulerType": transformers.trainer_utils.SchedulerType,
    "OptimizerNames": transformers.training_args.OptimizerNames,
    "ParallelMode": transformers.training_args.ParallelMode,
    "DebugOption": transformers.debug_utils.DebugOption,
}

ADDED_LATER = {"SchedulerType": ["greedy"]}
"""What versions after 5.3.0 have too."""


def test_every_enumeration_is_compared():
    found = {name for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, Enum)}
    assert found == {*REFERENCE, "ExplicitEnum", "Enum"}


@pytest.mark.parametrize("name", REFERENCE)
def test_members_are_those_of_the_reference(name):
    ours, reference = getattr(enums, name), REFERENCE[name]
    shared = [m for m in ours if m.value not in ADDED_LATER.get(name, ())]
    assert [(m.name, m.value, str(m), f"{m}") for m in shared] == [(m.name, m.value, str(m), f"{m}") for m in reference]
    assert issubclass(ours, str) == issubclass(reference, str)


def test_unknown_values_raise_as_in_the_reference():
    for kind in (enums.IntervalStrategy, REFERENCE["IntervalStrategy"]):
        with pytest.raises(ValueError, match="epochs"):
            kind("epochs")
    with pytest.raises(ValueError, match="Did you mean 'epoch'"):
        enums.IntervalStrategy("epochs")
