"""Weights of a loss that is not a part of the model are trained like its own, saved and loaded."""

import os

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import IterableDataset
from transformers import BertConfig, BertForSequenceClassification

from helpers.ddp.external_parameters_script import LossWithHead, Regression, make_trainer, values
from lightrainer import Trainer, TrainingArguments
from lightrainer.facade.trainer.external_parameters import EXTERNAL_PARAMETERS_NAME


class LossInTrainer(Trainer):
    """An override with a loss as an attribute."""

    loss: LossWithHead

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.loss(outputs, labels)
        return (loss, outputs) if return_outputs else loss


def made(folder, cls, **options):
    """Return a Trainer and its loss."""
    loss = LossWithHead()
    trainer = make_trainer(folder, loss, cls, **options)
    trainer.loss = loss
    return trainer, loss


@pytest.fixture(params=[Trainer, LossInTrainer])
def cls(request):
    return request.param


@pytest.mark.parametrize("accumulation", [1, 2])
def test_weights_outside_the_model_are_trained_as_if_inside(tmp_path, cls, accumulation):
    options = {
        "per_device_train_batch_size": 8 // accumulation,
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "no",
    }
    trainer, loss = made(tmp_path, cls, **options)
    trainer.train()

    inside = LossWithHead()
    model = Regression()
    model.loss = inside
    other = make_trainer(tmp_path, inside, cls, model=model, **options)
    other.loss = inside
    other.train()
    assert values(loss) == values(inside)
    assert values(loss) != values(LossWithHead())


@pytest.mark.parametrize("step", [2, 4])
def test_weights_outside_the_model_are_resumed(tmp_path, step):
    trainer, loss = made(tmp_path / "whole", Trainer)
    trainer.train()
    checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
    resumed, resumed_loss = made(tmp_path / "resumed", Trainer)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert values(resumed_loss) == values(loss)
    assert str(resumed.model.state_dict()) == str(trainer.model.state_dict())


def test_best_weights_outside_the_model_are_loaded_at_the_end(tmp_path):
    class Worse(LossWithHead):
        """Each evaluation is worse than the one before."""

        evaluations = 0

        def forward(self, outputs, labels, num_items_in_batch=None):
            if torch.is_grad_enabled():
                return super().forward(outputs, labels)
            self.evaluations += 1
            return torch.tensor(float(self.evaluations))

    loss = Worse()
    at_best = []
    trainer = make_trainer(
        tmp_path, loss, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2
    )
    original = trainer.evaluate

    def evaluate(*args, **kwargs):
        at_best.append(values(loss))
        return original(*args, **kwargs)

    trainer.evaluate = evaluate
    trainer.train()
    assert len(at_best) == 3
    assert values(loss) == at_best[0] != at_best[-1]


def test_a_checkpoint_without_weights_outside_the_model_is_warned_of(tmp_path, caplog):
    """Such as one of an earlier version, or of transformers."""
    trainer, _ = made(tmp_path, Trainer, max_steps=2)
    trainer.train()
    os.remove(tmp_path / "checkpoint-2" / "_manifest.json")
    os.remove(tmp_path / "checkpoint-2" / EXTERNAL_PARAMETERS_NAME)
    resumed, _ = made(tmp_path, Trainer, max_steps=4)
    resumed.train(resume_from_checkpoint=True)
    assert "2 trained parameters that are not part of the model" in caplog.text


def test_other_weights_outside_the_model_are_refused(tmp_path):
    trainer, _ = made(tmp_path, Trainer, max_steps=2)
    trainer.train()
    trainer._lightrainer.external_parameters.begin(list(nn.Linear(3, 2).parameters()))
    with pytest.raises(ValueError, match=EXTERNAL_PARAMETERS_NAME):
        trainer._lightrainer.external_parameters.load(str(tmp_path / "checkpoint-2"))


def test_a_training_without_weights_outside_writes_no_such_file(tmp_path):
    loss = LossWithHead()
    model = Regression()
    model.loss = loss
    make_trainer(tmp_path, loss, model=model, max_steps=2).train()
    assert not (tmp_path / "checkpoint-2" / EXTERNAL_PARAMETERS_NAME).exists()


class WeightedLoss(nn.Module):
    """A loss with trained class weights, of a classifier's logits."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, 1.5, 0.5]))

    def forward(self, outputs, labels, num_items_in_batch=None):
        # Under an accumulated window the sum of all losses is divided by the items of the step.
        losses = nn.functional.cross_entropy(outputs["logits"].float(), labels, reduction="none")
        weighed = losses * self.weights[labels]
        if num_items_in_batch is None:
            return weighed.mean()
        return weighed.sum() / num_items_in_batch


def bert():
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def adapted():
    return get_peft_model(
        bert(), LoraConfig(target_modules=["query"], modules_to_save=["classifier"])
    )


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


KINDS = {
    "head of transformers": (bert, {}),
    "PEFT": (adapted, {}),
    "stream": (bert, {"max_steps": 4}),
    "bfloat16": (bert, {"bf16": True}),
    "float16": (bert, {"fp16": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_outside_the_model_are_trained_as_if_inside_of_every_kind(tmp_path, kind):
    make_model, options = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    samples = []
    for index in range(16):
        ids = torch.randint(0, 30, (6,), generator=generator)
        samples.append({"input_ids": ids, "labels": index % 3})
    if kind == "stream":
        samples = Stream(samples)

    trained = []
    for is_inside in (False, True):
        loss = WeightedLoss()
        model = make_model()
        if is_inside:
            model.loss = loss
        parameters = [weight for weight in model.parameters() if weight.requires_grad]
        if not is_inside:
            parameters += loss.parameters()
        args = TrainingArguments(
            str(tmp_path / str(is_inside)),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_grad_norm=0.0,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            **{"num_train_epochs": 2, **options},
        )
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        Trainer(
            model,
            args,
            train_dataset=samples,
            compute_loss_func=loss,
            optimizers=(optimizer, None),
        ).train()
        trained.append(loss.weights.tolist())
    outside, inside = trained
    assert outside == inside
    assert outside != WeightedLoss().weights.tolist()
