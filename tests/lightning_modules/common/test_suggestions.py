"""Names of schedules and optimizers."""

import subprocess
import sys
from dataclasses import fields

import pytest

from lightrainer import TrainingArguments
from lightrainer.lightning_modules.common.suggestions import OptimizerNames, SchedulerType, did_you_mean, nearest


def test_an_unknown_value_is_answered_with_the_nearest_and_all_valid_ones():
    with pytest.raises(ValueError, match=r"'Cosin' is not a valid SchedulerType\. Did you mean 'cosine'\?") as error:
        SchedulerType("Cosin")
    assert all(m.value in str(error.value) for m in SchedulerType)


def test_a_value_near_to_none_is_answered_without_a_guess():
    with pytest.raises(ValueError, match=r"3 is not a valid SchedulerType\. Valid values: linear") as error:
        SchedulerType(3)
    assert "Did you mean" not in str(error.value)


CHOICES = {
    "arguments": [item.name for item in fields(TrainingArguments)],
    "intervals": ["no", "steps", "epoch", "best"],
    "metrics": ["eval_loss", "eval_accuracy", "eval_recall", "epoch"],
    "optimizers": [member.value for member in OptimizerNames],
    "schedules": [member.value for member in SchedulerType],
    "trackers": ["wandb", "tensorboard", "mlflow", "all", "none"],
    "directions": ["minimize", "maximize"],
    "backends": ["nccl", "gloo", "mpi", "ccl", "hccl", "cncl", "mccl"],
}

MEANT = [
    ("arguments", "learning_rte", "learning_rate"),
    ("arguments", "lerning_rate", "learning_rate"),
    ("arguments", "Learning_Rate", "learning_rate"),
    ("arguments", "learning_rates", "learning_rate"),
    ("arguments", "weightdecay", "weight_decay"),
    ("arguments", "max_gradient_norm", "max_grad_norm"),
    ("arguments", "evaluation_stratgy", "eval_strategy"),
    ("arguments", "batch_size", "per_device_train_batch_size"),
    ("arguments", "num_epochs", "num_train_epochs"),
    ("arguments", "gradient_acc_steps", "gradient_accumulation_steps"),
    ("arguments", "load_best_model_at_the_end", "load_best_model_at_end"),
    ("intervals", "epochs", "epoch"),
    ("intervals", "step", "steps"),
    ("intervals", "setps", "steps"),
    ("metrics", "eval_los", "eval_loss"),
    ("metrics", "eval_acuracy", "eval_accuracy"),
    ("metrics", "accuracy", "eval_accuracy"),
    ("optimizers", "AdamW", "adamw_torch"),
    ("optimizers", "adamw_torhc", "adamw_torch"),
    ("optimizers", "adamw8bit", "adamw_8bit"),
    ("schedules", "cosin", "cosine"),
    ("schedules", "cosine_restarts", "cosine_with_restarts"),
    ("schedules", "liner", "linear"),
    ("trackers", "tensorbord", "tensorboard"),
    ("trackers", "wnadb", "wandb"),
    ("directions", "max", "maximize"),
    ("directions", "minimise", "minimize"),
    ("backends", "nvcc", "nccl"),
]
"""Misspelt names and their suggestions."""

NOT_MEANT = [
    ("intervals", "sometimes"),
    ("intervals", "always"),
    ("intervals", "yes"),
    ("intervals", "3"),
    ("intervals", "None"),
    ("metrics", "eval_f1"),
    ("metrics", "eval_precision"),
    ("metrics", "eval_bleu"),
    ("metrics", "f1"),
    ("arguments", "devices"),
    ("arguments", "callbacks"),
    ("arguments", "precision"),
    ("arguments", "momentum"),
    ("arguments", "x"),
    ("arguments", ""),
    ("arguments", "eval_" * 1000),
    ("optimizers", "shampoo"),
    ("schedules", "staircase"),
    ("trackers", "xyz"),
    ("directions", "upwards"),
]


@pytest.mark.parametrize(("kind", "written", "meant"), MEANT, ids=[written for _, written, _ in MEANT])
def test_what_was_meant_is_suggested(kind, written, meant):
    assert did_you_mean(written, CHOICES[kind]) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize(("kind", "written"), NOT_MEANT, ids=[written[:20] for _, written in NOT_MEANT])
def test_what_is_near_to_nothing_is_not_guessed(kind, written):
    assert did_you_mean(written, CHOICES[kind]) == ""


def test_one_wrong_letter_in_the_name_of_an_argument_is_found():
    """Each eighth letter of each name once left out, doubled, replaced, and swapped with the next."""
    names, missed, count = CHOICES["arguments"], [], 0
    for index, name in enumerate(names):
        for at in range(index % 8, len(name) - 1, 8):
            begin, letter, end = name[:at], name[at], name[at + 1 :]
            for written in (begin + end, begin + 2 * letter + end, f"{begin}q{end}", begin + end[0] + letter + end[1:]):
                if written not in names:
                    count += 1
                    missed += [(name, written)] * (nearest(written, names) != name)
    assert count > 600
    assert len(missed) < count / 200, missed


def test_importing_the_names_does_not_load_torch():
    code = "import sys, lightrainer.lightning_modules.common.suggestions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
