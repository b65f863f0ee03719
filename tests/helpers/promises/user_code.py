"""Kinds of user code that meet the promise of accumulation: a window of micro-batches is one big
batch.

Each entry of `KINDS` is a model, its data and a Trainer, as scripts have them, and the loss of the
big batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import IterableDataset
from transformers import (
    BartForConditionalGeneration,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from helpers.promises.class_walk import own_loss, trained, whole_batch
from helpers.promises.small_models import VOCABULARY, make_model
from helpers.promises.small_samples import Sample, make_samples
from lightrainer import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

HALF = 2e-2
"""Relative tolerance of half precision."""


def bert() -> nn.Module:
    """Return a model whose loss is a mean, although its `forward` takes `**kwargs`."""
    return make_model(BertForTokenClassification)


def classifier() -> nn.Module:
    """Return a model whose loss is a mean over rows."""
    return make_model(BertForSequenceClassification)


def llama() -> nn.Module:
    """Return a model that divides its loss by `num_items_in_batch`."""
    return make_model(LlamaForCausalLM)


def bart() -> nn.Module:
    return make_model(BartForConditionalGeneration)


def with_adapter(model: nn.Module) -> nn.Module:
    config = LoraConfig(r=2, target_modules=["query", "q_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    return get_peft_model(model, config)


class Tagger(nn.Module):
    """A module of one's own, whose loss is the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, 2)

    def losses(self, input_ids: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        logits = self.head(self.embedding(input_ids))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)

    def forward(self, input_ids, labels=None):
        return {"loss": self.losses(input_ids, labels)}


class TaggerWithKwargs(Tagger):
    def forward(self, input_ids, labels=None, **kwargs):
        return {"loss": self.losses(input_ids, labels)}


class TaggerThatNamesItems(Tagger):
    def forward(self, input_ids, labels=None, num_items_in_batch=None):
        items = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": self.losses(input_ids, labels, "sum") / items}


class TaggerWithExperts(TaggerThatNamesItems):
    """As a mixture of experts, it adds a mean over the micro-batch to the loss divided by items."""

    router_aux_loss_coef = 0.5

    def forward(self, input_ids, labels=None, num_items_in_batch=None):
        loss = super().forward(input_ids, labels, num_items_in_batch)["loss"]
        logits = self.head(self.embedding(input_ids))
        aux_loss = logits[labels.ne(-100)].square().mean()
        return {"loss": loss + self.router_aux_loss_coef * aux_loss, "aux_loss": aux_loss}


class TaggerThatNamesItemsOnly(Tagger):
    def forward(self, input_ids, labels=None, num_items_in_batch=None):
        return {"loss": self.losses(input_ids, labels)}


def samples_for(model: nn.Module, *, uneven: bool = True) -> list[Sample]:
    """Return the samples of one step, with other numbers of labels in each unless they are even."""
    if isinstance(model, Tagger):
        samples = make_samples(bert(), uneven=uneven)
        return [{name: sample[name] for name in ("input_ids", "labels")} for sample in samples]
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return make_samples(base, uneven=uneven)


class Stream(IterableDataset):
    """The samples, without their number."""

    def __init__(self, samples: list[Sample]):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


def logits_loss(model: nn.Module, inputs: Sample, **options: Any) -> tuple[Tensor, Any]:
    """Return the cross entropy of logits and labels, and the outputs of a model that is not
    given the labels.
    """
    others = {name: value for name, value in inputs.items() if name != "labels"}
    outputs = model(**others)
    loss = functional.cross_entropy(
        outputs.logits.flatten(0, -2), inputs["labels"].flatten(), **options
    )
    return loss, outputs


class IgnoresItems(Trainer):
    """Class weights or distillation, as in many recipes: a mean, whatever the number of items."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = logits_loss(model, inputs, weight=torch.ones(2))
        return (loss, outputs) if return_outputs else loss


class TakesKwargs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = logits_loss(model, inputs, weight=torch.ones(2))
        return (loss, outputs) if return_outputs else loss


class TakesNoItems(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        loss, outputs = logits_loss(model, inputs, weight=torch.ones(2))
        return (loss, outputs) if return_outputs else loss


class DividesByItems(Trainer):
    """As transformers documents it: the sum over all items of the step, times the processes that
    DDP averages over.
    """

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = logits_loss(model, inputs, reduction="sum")
        loss = loss * self.accelerator.num_processes / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


class PassesItemsOn(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class PassesKwargsOn(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)


class KeepsItemsBack(Trainer):
    """Calls the loss of the Trainer without the number of items."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs)


class LooksAtOutputs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        return (loss, outputs) if return_outputs else loss


class StepsWithAccelerator(Trainer):
    """Adversarial training and the like."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


class StepsWithLoss(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


class StepsTwice(Trainer):
    """Two forward and backward passes of one micro-batch, as with an adversarial sample."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(0.5 * loss)
        again = self.compute_loss(model, inputs)
        self.accelerator.backward(0.5 * again)
        return loss.detach()


class StepsTwiceThroughOneGraph(Trainer):
    """Two backward passes through one forward pass."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(0.5 * loss, retain_graph=True)
        self.accelerator.backward(0.5 * loss)
        return loss.detach()


class StepsWithDividedLoss(Trainer):
    """Divides by the micro-batches itself, whatever there is in them."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs) / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()


class EvaluatesFirst(Trainer):
    def train(self, *args, **kwargs):
        self.evaluate(self.train_dataset)
        return super().train(*args, **kwargs)


def mean_loss_function(outputs, labels, num_items_in_batch=None):
    return functional.cross_entropy(outputs.logits.flatten(0, -2), labels.flatten())


def loss_function_by_items(outputs, labels, num_items_in_batch=None):
    loss = functional.cross_entropy(
        outputs.logits.flatten(0, -2), labels.flatten(), reduction="sum"
    )
    return loss / num_items_in_batch


def smoothed_loss(model: nn.Module, batch: Sample) -> Tensor:
    return logits_loss(model, batch, label_smoothing=0.1)[0]


def smoothed_loss_of_next_tokens(model: nn.Module, batch: Sample) -> Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels.flatten(), label_smoothing=0.1
    )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """User code, and the step that it has to take.

    Attributes:
        model: makes the model.
        trainer: class of the Trainer.
        arguments: further training arguments.
        parameters: further parameters of the Trainer.
        loss: of a model and a batch, for the whole batch; by default the one that the model
            returns.
        uneven: whether each sample has another number of labels.
        stream: whether the data is a stream.
        args_class: of the training arguments.
        tolerance: the largest relative difference.
    """

    model: Callable[[], nn.Module] = bert
    trainer: type[Trainer] = Trainer
    arguments: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[nn.Module, Sample], Tensor] = own_loss
    uneven: bool = True
    stream: bool = False
    args_class: type[TrainingArguments] = TrainingArguments
    tolerance: float = 1e-5

    def difference(self, micro_batch: int, folder: str | Path) -> float:
        """Return the relative difference between a window of micro-batches and the whole batch."""
        samples = samples_for(self.model(), uneven=self.uneven)
        expected = whole_batch(self.model(), samples, self.loss)
        step = trained(
            self.model(),
            Stream(samples) if self.stream else samples,
            micro_batch,
            folder,
            trainer_class=self.trainer,
            args_class=self.args_class,
            arguments=self.arguments,
            **self.parameters,
        )
        return step.difference(expected)


COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}

KINDS: dict[str, Kind] = {
    "head, mean": Kind(model=bert),
    "head, by items": Kind(model=llama),
    "head, mean over rows": Kind(model=classifier),
    "compute_loss, ignores items": Kind(trainer=IgnoresItems),
    "compute_loss, takes kwargs": Kind(trainer=TakesKwargs),
    "compute_loss, takes no items": Kind(trainer=TakesNoItems),
    "compute_loss, divides by items": Kind(trainer=DividesByItems),
    "compute_loss, passes items on, mean": Kind(trainer=PassesItemsOn),
    "compute_loss, passes items on, by items": Kind(model=llama, trainer=PassesItemsOn),
    "compute_loss, passes kwargs on, mean": Kind(trainer=PassesKwargsOn),
    "compute_loss, passes kwargs on, by items": Kind(model=llama, trainer=PassesKwargsOn),
    "compute_loss, keeps items back, mean": Kind(trainer=KeepsItemsBack),
    "compute_loss, keeps items back, by items": Kind(model=llama, trainer=KeepsItemsBack),
    "compute_loss, looks at outputs, mean": Kind(trainer=LooksAtOutputs),
    "compute_loss, looks at outputs, by items": Kind(model=llama, trainer=LooksAtOutputs),
    "train, evaluates first": Kind(trainer=EvaluatesFirst),
    "compute_loss_func, mean": Kind(parameters={"compute_loss_func": mean_loss_function}),
    "compute_loss_func, by items": Kind(parameters={"compute_loss_func": loss_function_by_items}),
    "training_step, accelerator.backward": Kind(trainer=StepsWithAccelerator),
    "training_step, loss.backward": Kind(trainer=StepsWithLoss),
    "training_step, loss.backward, by items": Kind(model=llama, trainer=StepsWithLoss),
    "training_step, two passes": Kind(trainer=StepsTwice),
    "training_step, two backward passes": Kind(trainer=StepsTwiceThroughOneGraph),
    "training_step, divided loss": Kind(trainer=StepsWithDividedLoss, uneven=False),
    "adapter, mean": Kind(model=lambda: with_adapter(bert())),
    "adapter, by items": Kind(model=lambda: with_adapter(llama())),
    "adapter, mean over rows": Kind(
        model=lambda: with_adapter(make_model(LlamaForSequenceClassification))
    ),
    "own module with kwargs": Kind(model=TaggerWithKwargs),
    "own module that divides by items": Kind(model=TaggerThatNamesItems),
    "own module with experts": Kind(model=TaggerWithExperts),
    "own module that names items": Kind(model=TaggerThatNamesItemsOnly),
    "own module": Kind(model=Tagger),
    "label smoothing": Kind(arguments={"label_smoothing_factor": 0.1}, loss=smoothed_loss),
    "label smoothing of next tokens": Kind(
        model=llama, arguments={"label_smoothing_factor": 0.1}, loss=smoothed_loss_of_next_tokens
    ),
    "Seq2SeqTrainer": Kind(model=bart, trainer=Seq2SeqTrainer, args_class=Seq2SeqTrainingArguments),
    "stream": Kind(stream=True),
    "short window": Kind(
        arguments={"gradient_accumulation_steps": 8, "num_train_epochs": 1, "max_steps": -1}
    ),
    "short window of a stream": Kind(stream=True, arguments={"gradient_accumulation_steps": 8}),
    "short window, by items": Kind(
        model=llama, arguments={"gradient_accumulation_steps": 8, "max_steps": 1}
    ),
    "bf16": Kind(arguments={"bf16": True}, tolerance=HALF),
    "fp16": Kind(arguments={"fp16": True}, tolerance=HALF),
    "gradient checkpointing": Kind(arguments={"gradient_checkpointing": True}),
    "gradient checkpointing, by items": Kind(
        model=llama, arguments={"gradient_checkpointing": True}
    ),
    "compiled": Kind(arguments=COMPILED),
    "compiled, by items": Kind(model=llama, arguments=COMPILED),
    "compiled own module with kwargs": Kind(model=TaggerWithKwargs, arguments=COMPILED),
    "compiled own module that divides by items": Kind(
        model=TaggerThatNamesItems, arguments=COMPILED
    ),
}

NOT_IN_PROCESSES = ("compiled", "compiled, by items")
"""Names of `KINDS` that two processes leave out: heads take seconds to compile, and own modules
are compiled there.
"""
