"""The named choices of the API."""

from enum import Enum

import pytest
from transformers import debug_utils, trainer_utils, training_args

from lightrainer.facade.arguments import enums

NAMES = [name for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, Enum)]
REFERENCE = {**vars(debug_utils), **vars(training_args), **vars(trainer_utils)}
ADDED_LATER = {"SchedulerType": ["greedy"]}
"""Values added after 5.3.0."""


@pytest.mark.parametrize("name", sorted({*NAMES} - {"ExplicitEnum", "Enum"}))
def test_members_are_those_of_the_reference(name):
    ours, reference = getattr(enums, name), REFERENCE[name]
    shared = [m for m in ours if m.value not in ADDED_LATER.get(name, ())]
    assert [(m.name, m.value, str(m), f"{m}") for m in shared] == [(m.name, m.value, str(m), f"{m}") for m in reference]
    assert issubclass(ours, str) == issubclass(reference, str)
