"""Names of schedules and optimizers."""

import subprocess
import sys

import pytest
from transformers.trainer_utils import SchedulerType as ReferenceSchedulerType
from transformers.training_args import OptimizerNames as ReferenceOptimizerNames

from lightrainer.lightning_modules.names import ExplicitEnum, OptimizerNames, SchedulerType, did_you_mean


@pytest.mark.parametrize(
    ("ours", "reference"), [(SchedulerType, ReferenceSchedulerType), (OptimizerNames, ReferenceOptimizerNames)]
)
def test_members_are_those_of_the_reference(ours, reference):
    assert {m.name: m.value for m in ours} == {m.name: m.value for m in reference}
    assert [m.name for m in ours] == [m.name for m in reference]


def test_a_member_equals_its_text():
    assert SchedulerType("cosine") is SchedulerType.COSINE
    assert SchedulerType.COSINE == "cosine"
    assert isinstance(SchedulerType.COSINE, ExplicitEnum)


def test_an_unknown_value_is_answered_with_the_nearest_and_all_valid_ones():
    with pytest.raises(ValueError, match=r"'Cosin' is not a valid SchedulerType\. Did you mean 'cosine'\?") as error:
        SchedulerType("Cosin")
    assert all(m.value in str(error.value) for m in SchedulerType)


def test_a_value_near_to_none_is_answered_without_a_guess():
    with pytest.raises(ValueError, match=r"3 is not a valid SchedulerType\. Valid values: linear") as error:
        SchedulerType(3)
    assert "Did you mean" not in str(error.value)


def test_did_you_mean():
    assert did_you_mean("tensorbord", ["wandb", "tensorboard"]) == " Did you mean 'tensorboard'?"
    assert did_you_mean("AdamW", ["lomo", "grokadamw", "adamw_torch"]) == " Did you mean 'adamw_torch'?"
    assert did_you_mean("xyz", ["wandb", "tensorboard"]) == ""


def test_importing_the_names_does_not_load_torch():
    code = "import sys, lightrainer.lightning_modules.names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
