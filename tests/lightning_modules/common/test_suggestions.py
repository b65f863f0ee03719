"""Suggestions for misspelt names."""

from dataclasses import fields

import pytest

from lightrainer import TrainingArguments
from lightrainer.lightning_modules.common.enums import OptimizerNames, SchedulerType
from lightrainer.lightning_modules.common.suggestions import did_you_mean


def test_did_you_mean_lists_the_nearest_and_all_values():
    with pytest.raises(
        ValueError, match=r"'Cosin' is not a valid SchedulerType\. Did you mean 'cosine'\?"
    ) as error:
        SchedulerType("Cosin")
    assert all(m.value in str(error.value) for m in SchedulerType)


def test_did_you_mean_without_a_near_value_makes_no_guess():
    with pytest.raises(
        ValueError, match=r"3 is not a valid SchedulerType\. Valid values: linear"
    ) as error:
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

MEANT = """
arguments: learning_rte>learning_rate lerning_rate>learning_rate Learning_Rate>learning_rate weightdecay>weight_decay
arguments: learning_rates>learning_rate max_gradient_norm>max_grad_norm evaluation_stratgy>eval_strategy
arguments: batch_size>per_device_train_batch_size num_epochs>num_train_epochs
arguments: gradient_acc_steps>gradient_accumulation_steps load_best_model_at_the_end>load_best_model_at_end
intervals: epochs>epoch step>steps setps>steps
metrics: eval_los>eval_loss eval_acuracy>eval_accuracy accuracy>eval_accuracy
optimizers: AdamW>adamw_torch adamw_torhc>adamw_torch adamw8bit>adamw_8bit
schedules: cosin>cosine cosine_restarts>cosine_with_restarts liner>linear
trackers: tensorbord>tensorboard wnadb>wandb
directions: max>maximize minimise>minimize
backends: nvcc>nccl
"""
"""Misspelt names, and what is suggested for each."""
NOT_MEANT = """
intervals: sometimes always yes 3 None
metrics: eval_f1 eval_precision eval_bleu f1
arguments: devices callbacks precision momentum x
optimizers: shampoo
schedules: staircase
trackers: xyz
directions: upwards
"""


def entries(table):
    return [
        (*line.split(": ")[:1], word)
        for line in table.split("\n")
        for word in line.partition(": ")[2].split()
    ]


@pytest.mark.parametrize(("kind", "word"), entries(MEANT))
def test_did_you_mean_suggests_typos(kind, word):
    written, meant = word.split(">")
    assert did_you_mean(written, CHOICES[kind]) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("kind", "written"), [*entries(NOT_MEANT), ("arguments", ""), ("arguments", "eval_" * 1000)]
)
def test_did_you_mean_ignores_distant_values(kind, written):
    assert did_you_mean(written, CHOICES[kind]) == ""
