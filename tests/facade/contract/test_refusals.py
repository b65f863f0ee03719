"""Refusals: of the reference's kind, before anything is written, with name, value and remedy.

The value of an unknown argument is left out: its name may be that of a token, misspelt.
"""

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers

import lightrainer
from helpers.contract.refusals import COMBINATIONS, Bad
from helpers.trainer.tiny_trainings import ARGUMENTS, files, points, tiny

# The table sets these itself, or is about them not being set.
QUIET = {
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "num_train_epochs": 1,
}


def refusal(api: ModuleType, bad: Bad, folder: Path) -> Exception | None:
    """Return the error of a library on the way to the place at which it is expected at the
    latest.
    """
    try:
        attempt(api, bad, folder)
    except Exception as error:
        return error
    return None


def attempt(api: ModuleType, bad: Bad, folder: Path) -> None:
    options = copy.deepcopy({**bad.beside, **bad.arguments})
    resume = options.pop("resume_from_checkpoint") if bad.until == "resume" else None
    if bad.until == "arguments":
        api.TrainingArguments(str(folder), **options)
        return
    args = api.TrainingArguments(str(folder), **{**ARGUMENTS, **QUIET, **options})
    parts: dict[str, Any] = {
        "model": tiny(),
        "train_dataset": points(),
        "eval_dataset": points(6, seed=2),
    }
    trainer = api.Trainer(args=args, **{**parts, **bad.parts()})
    if bad.until != "trainer":
        trainer.train(resume_from_checkpoint=resume)


def words(value: Any) -> list[str]:
    """Return the words that an error about a value contains."""
    if isinstance(value, str):
        return value.split() if not value.startswith("{") else [value]
    if isinstance(value, dict):
        return [str(key) for key in value]
    if isinstance(value, list):
        return [str(item) for item in value]
    return [repr(value)]


# from the reference, where fsdp is not set
@pytest.mark.filterwarnings("ignore:.*only when:UserWarning")
@pytest.mark.parametrize("bad", COMBINATIONS, ids=str)
def test_argument_is_refused(bad, tmp_path):
    if bad.needs_cpu and torch.cuda.is_available():
        pytest.skip("tests machines without a GPU")
    theirs = refusal(transformers, bad, tmp_path / "theirs")
    assert (theirs is None) is bad.accepted, repr(theirs)
    ours = refusal(lightrainer, bad, tmp_path / "ours")
    assert isinstance(ours, type(theirs) if theirs is not None else (ValueError, TypeError)), repr(
        ours
    )
    assert files(tmp_path / "ours") == []
    assert bad.until in ("train", "resume") or not (tmp_path / "ours").exists()
    message = str(ours)
    assert bad.remedy in message
    for name, value in bad.arguments.items():
        assert name in message
        shown = [word in message for word in words(value)]
        assert not any(shown) if bad.unknown else all(shown)


def test_right_arguments_pass(tmp_path):
    """Negative control: the way on which the errors arise is open for arguments that can be."""
    for place in ("arguments", "trainer", "train"):
        assert (
            refusal(lightrainer, Bad({"learning_rate": 0.1}, "", until=place), tmp_path / place)
            is None
        )
    assert files(tmp_path / "train") == []


def test_refusals_are_reported_together(tmp_path):
    wrong = {"learning_rate": "1e-4", "seed": -1, "eval_strategy": "epochs"}
    with pytest.raises(ValueError, match=r"^3 arguments are invalid:\n") as error:
        lightrainer.TrainingArguments(str(tmp_path / "out"), **wrong)
    assert [name for name in wrong if name not in str(error.value)] == []
    assert len(str(error.value).splitlines()) == 4
    assert not (tmp_path / "out").exists()


def test_unknown_arguments_are_reported_together():
    with pytest.raises(
        TypeError, match=r"^2 arguments of TrainingArguments do not exist:\n"
    ) as error:
        lightrainer.TrainingArguments(evaluation_strategy="steps", learning_rte=1)
    assert [line.partition(": ")[0] for line in str(error.value).splitlines()[1:]] == [
        "evaluation_strategy",
        "learning_rte",
    ]
