"""The file names are the reference's, so that both libraries find each other's files."""

import inspect

import pytest

from lightrainer.lightning_modules.common import file_names

WITHOUT_CONSTANT = {
    "INCOMPLETE_NAME",
    "MODEL_PARTS_NAME",
    "OPTIMIZER_PARTS_NAME",
    "TRAINED_WEIGHTS_NAME",
}
"""Names that transformers or accelerate have in their code only."""


@pytest.mark.parametrize(
    "name",
    sorted(name for name in vars(file_names) if name.isupper() and name not in WITHOUT_CONSTANT),
)
def test_constant_has_the_references_name_and_value(name: str):
    from transformers import trainer, trainer_utils, utils
    from transformers.utils import peft_utils

    places = [
        place for place in (trainer, trainer_utils, utils, peft_utils) if hasattr(place, name)
    ]
    assert places
    assert {getattr(place, name) for place in places} == {getattr(file_names, name)}


def test_trained_weights_have_the_name_of_accelerate():
    from accelerate.utils.constants import FSDP_MODEL_NAME

    assert f"{FSDP_MODEL_NAME}.bin" == file_names.TRAINED_WEIGHTS_NAME
    assert f"{FSDP_MODEL_NAME}_0" == file_names.MODEL_PARTS_NAME


def test_mark_of_incomplete_checkpoints_has_the_references_name():
    from transformers import trainer_jit_checkpoint

    assert f'"{file_names.INCOMPLETE_NAME}"' in inspect.getsource(trainer_jit_checkpoint)
