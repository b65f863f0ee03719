"""The same model and data give the same losses through the facade and through the modules with a
plain Trainer.
"""

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, run
from helpers.parity.lightning_side import WARNINGS
from helpers.parity.parity_datasets import class_data, point_data, sentence_data
from helpers.parity.parity_models import Classifier, bert, gpt2, t5
from helpers.parity.plain_lightning import plain_run
from lightrainer.lightning_modules import (
    CausalLMModule,
    LossModule,
    Seq2SeqModule,
    SequenceClassificationModule,
)
from lightrainer.lightning_modules.common.version_behavior import version_behavior

pytestmark = WARNINGS

# Dropout is on in all of them. Clipping, warm-up and decay all have an effect here; evaluations
# draw numbers as well.
FULL = {
    "max_grad_norm": 0.5,
    "warmup_steps": 3,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
}
FULL |= {"eval_strategy": "epoch"}
SMOOTH = {**FULL, "label_smoothing_factor": 0.1}
BY_LENGTH = {**SMOOTH, "neftune_noise_alpha": 5.0, "train_sampling_strategy": "group_by_length"}
CASES = {
    "a module": (Case(Classifier, point_data, FULL), LossModule),
    "a module, smoothed": (Case(Classifier, point_data, SMOOTH), LossModule),
    "gpt2": (Case(gpt2, sentence_data, FULL), CausalLMModule),
    "gpt2, any module": (Case(gpt2, sentence_data, FULL), LossModule),
    "gpt2, smoothed, noise, by length": (Case(gpt2, sentence_data, BY_LENGTH), CausalLMModule),
    "bert": (Case(bert, class_data, FULL), SequenceClassificationModule),
    "t5": (Case(t5, sentence_data, FULL), Seq2SeqModule),
    "a share of warm-up, by steps": (
        Case(Classifier, point_data, {"warmup_steps": 0.3, "max_steps": 9, "num_train_epochs": 3}),
        LossModule,
    ),
}


def skip_where_labels_are_counted_otherwise(name):
    if name.startswith("gpt2, smoothed") and version_behavior().smooths_by_items:
        pytest.skip(
            "GPT2LMHeadModel says of no loss: smoothed, its first labels are counted and not "
            "compared there"
        )


def logged(found, name):
    return [entry[name] for entry in found.history if name in entry]


@pytest.mark.parametrize("name", CASES)
def test_bit_for_bit(ours, tmp_path, name):
    """Losses and rates of each step, all weights, and where the generator stands; without
    accumulation.
    """
    skip_where_labels_are_counted_otherwise(name)
    case, kind = CASES[name]
    facade = run(ours, case, tmp_path / "facade")
    plain = plain_run(case, tmp_path / "plain", kind)
    assert logged(facade, "loss") == plain.losses
    assert len(plain.losses) == plain.trainer.global_step == facade.state["global_step"] > 8
    assert logged(facade, "learning_rate") == plain.rates
    assert not differences(facade.weights, plain.weights, "weights")
    assert torch.equal(facade.random_state["torch"], plain.random)
    assert logged(facade, "eval_loss") == pytest.approx(plain.evaluations, rel=1e-5)


@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_plain_lightning_with_accumulation(ours, tmp_path, name, accumulation):
    """To 1e-6; six batches in an epoch, so that steps of four leave a shorter one, and tokens are
    not equally many.

    BERT and T5 accept `num_items_in_batch`, and return a mean all the same.
    """
    skip_where_labels_are_counted_otherwise(name)
    case, kind = CASES[name]
    case = case.but(arguments={"gradient_accumulation_steps": accumulation, "learning_rate": 1e-3})
    facade = run(ours, case, tmp_path / "facade")
    plain = plain_run(case, tmp_path / "plain", kind)
    assert logged(facade, "loss") == pytest.approx(plain.losses, rel=1e-5, abs=1e-6)
    assert plain.trainer.global_step == facade.state["global_step"]
    assert logged(facade, "eval_loss") == pytest.approx(plain.evaluations, rel=1e-5)
    torch.testing.assert_close(plain.weights, facade.weights, rtol=1e-5, atol=1e-5)


def adapted():
    """Return a classifier with an adapter of PEFT in its first layer."""
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(Classifier(), peft.LoraConfig(target_modules=["first"]))


@pytest.mark.parametrize("model", [Classifier, adapted])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_labels_are_smoothed_under_autocast(ours, tmp_path, model, accumulation):
    """The smoothed loss is computed in full precision in both; in half it differs by 6e-4."""
    arguments = {**SMOOTH, "bf16": True, "gradient_accumulation_steps": accumulation}
    arguments["learning_rate"] = 1e-3
    case = Case(model, point_data, arguments)
    facade = run(ours, case, tmp_path / "facade")
    plain = plain_run(case, tmp_path / "plain", precision="bf16-mixed")
    assert logged(facade, "loss") == pytest.approx(plain.losses, rel=1e-4)
    torch.testing.assert_close(plain.weights, facade.weights, rtol=1e-3, atol=1e-4)
