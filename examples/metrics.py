"""Metrics of four tasks, computed batch by batch with torchmetrics:
`python examples/metrics.py [TASK ...]`.

Each task makes its own data and a tiny model, trains for a second and prints what the last
evaluation found. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassJaccardIndex,
)
from torchmetrics.text import BLEUScore

from lightrainer import BatchMetrics, TokenLoss, TokenPerplexity, Trainer, TrainingArguments

Sample = dict[str, torch.Tensor]
TEXT = (
    "the quick brown fox jumps over the lazy dog and runs away from the old grey wolf, who sleeps "
    "under the tree."
)
NUMBERS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"]


def classification() -> dict[str, float]:
    """Accuracy and F1; the best model is the one with the best F1."""
    features = torch.randn(300, 8)
    data = [{"x": x, "labels": x[:3].argmax()} for x in features]
    metrics = {
        "accuracy": MulticlassAccuracy(3, average="micro"),
        "f1": MulticlassF1Score(3, average="macro"),
    }
    best = {
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
    }
    model = WithLoss(nn.Linear(8, 3))
    return trained(model, data[:250], data[250:], metrics, **best)


def language_modelling() -> dict[str, float]:
    """Return the loss for each token and the perplexity, exact however long the texts of a batch
    are.
    """
    data = [tokens(TEXT[start : start + 5 + start % 40]) for start in range(len(TEXT) - 5)]
    metrics = {"token_loss": TokenLoss(), "perplexity": TokenPerplexity()}
    return trained(BigramForCausalLM(), data * 8, data[::4], metrics, data_collator=pad)


def translation() -> dict[str, float]:
    """BLEU: a function of one's own makes texts of logits and labels."""
    data = [{"x": row, "labels": row.clone()} for row in torch.randint(len(NUMBERS), (200, 6))]

    def texts(predictions: torch.Tensor, labels: torch.Tensor) -> tuple[list[str], list[list[str]]]:
        sentences = [" ".join(NUMBERS[token] for token in row) for row in predictions.argmax(-1)]
        meant = [[" ".join(NUMBERS[token] for token in row)] for row in labels]
        return sentences, meant

    model = WithLoss(nn.Embedding(len(NUMBERS), len(NUMBERS)))
    return trained(
        model, data[:150], data[150:], BatchMetrics({"bleu": BLEUScore()}, prepare=texts)
    )


def segmentation() -> dict[str, float]:
    """mIoU of images, whose classes are in the second dimension; what is at the border is
    unlabelled (-100).
    """
    images = torch.rand(80, 1, 8, 8)
    masks = (images[:, 0] > 0.5).long()
    masks[:, 0, :] = -100
    data = [{"x": image, "labels": mask} for image, mask in zip(images, masks, strict=True)]
    model = WithLoss(nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1)), classes=1)
    return trained(model, data[:60], data[60:], {"miou": MulticlassJaccardIndex(2)})


TASKS: dict[str, Callable[[], dict[str, float]]] = {
    "classification": classification,
    "language_modelling": language_modelling,
    "translation": translation,
    "segmentation": segmentation,
}


class WithLoss(nn.Module):
    """Adds the cross entropy to a network that makes logits.

    Args:
        network: from `x` to logits.
        classes: the dimension of the classes.
    """

    def __init__(self, network: nn.Module, classes: int = -1) -> None:
        super().__init__()
        self.network = network
        self.classes = classes

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        logits = self.network(x)
        return {
            "loss": functional.cross_entropy(logits.movedim(self.classes, 1), labels),
            "logits": logits,
        }


class BigramForCausalLM(nn.Module):
    """Knows for each character which one may follow. Its name says that labels belong to the
    position before them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.following = nn.Embedding(128, 128)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        logits = self.following(input_ids)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def tokens(text: str) -> Sample:
    """Return a text, character by character."""
    ids = torch.tensor([ord(character) for character in text])
    return {"input_ids": ids, "labels": ids.clone()}


def pad(samples: list[Sample]) -> Sample:
    """Return a batch of texts of different lengths; labels are filled up with -100, which does
    not count.
    """
    inputs, labels = ([sample[name] for sample in samples] for name in ("input_ids", "labels"))
    return {
        "input_ids": nn.utils.rnn.pad_sequence(inputs, batch_first=True),
        "labels": nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100),
    }


def trained(
    model: nn.Module,
    train: list[Sample],
    held_out: list[Sample],
    metrics: Any,
    data_collator: Any = None,
    **more: Any,
) -> dict[str, float]:
    """Train for a second; returns the metrics of the held-out data."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=4,
            learning_rate=0.05,
            eval_strategy="epoch",
            **{"save_strategy": "no", **more},
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=train,
            eval_dataset=held_out,
            compute_metrics=metrics,
            data_collator=data_collator,
        )
        trainer.train()
        return trainer.evaluate()


def main(arguments: list[str] | None = None) -> None:
    """Run the tasks that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    chosen = parser.parse_args(arguments).tasks or list(TASKS)
    unknown = [name for name in chosen if name not in TASKS]
    if unknown:
        parser.error(f"no task {', '.join(unknown)}; there are {', '.join(TASKS)}")
    for name in chosen:
        torch.manual_seed(0)
        metrics = TASKS[name]()
        print(
            f"{name}: "
            + ", ".join(
                f"{key} {value:.3f}" for key, value in metrics.items() if "_per_" not in key
            )
        )


if __name__ == "__main__":
    main()
