"""Tiny datasets and collators. Every function gives the same data each time it is called."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from helpers.parity.parity_models import VOCABULARY


def points(count: int, seed: int = 1) -> list[dict[str, torch.Tensor]]:
    """Eight features and one of three classes."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 8, generator=generator)
    classes = (features @ torch.randn(8, 3, generator=generator)).argmax(dim=1)
    return [{"x": x, "labels": label} for x, label in zip(features, classes, strict=True)]


def sentences(
    count: int, seed: int = 2, shortest: int = 3, longest: int = 9
) -> list[dict[str, torch.Tensor]]:
    """Token sequences of different lengths; some of the labels are hidden too."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        length = int(torch.randint(shortest, longest + 1, (1,), generator=generator))
        ids = torch.randint(2, VOCABULARY, (length,), generator=generator)
        labels = ids.clone()
        labels[torch.rand(length, generator=generator) < 0.3] = -100
        labels[-1] = ids[-1]  # at least one label in each sequence
        samples.append({"input_ids": ids, "labels": labels})
    return samples


def labelled_sentences(count: int, seed: int = 3) -> list[dict[str, torch.Tensor]]:
    """Token sequences with one class each."""
    samples = sentences(count, seed)
    return [
        {"input_ids": item["input_ids"], "labels": item["input_ids"].sum() % 3} for item in samples
    ]


def pad(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad to the longest of the batch: inputs with 0, labels with -100."""
    longest = max(len(item["input_ids"]) for item in items)
    ids = torch.zeros(len(items), longest, dtype=torch.long)
    mask = torch.zeros(len(items), longest, dtype=torch.long)
    for row, item in enumerate(items):
        ids[row, : len(item["input_ids"])] = item["input_ids"]
        mask[row, : len(item["input_ids"])] = 1
    batch = {"input_ids": ids, "attention_mask": mask}
    if items[0]["labels"].dim() == 0:
        return {**batch, "labels": torch.stack([item["labels"] for item in items])}
    labels = torch.full((len(items), longest), -100)
    for row, item in enumerate(items):
        labels[row, : len(item["labels"])] = item["labels"]
    return {**batch, "labels": labels}


def point_data(train: int = 22, evaluation: int = 10) -> dict[str, Any]:
    return {"train_dataset": points(train), "eval_dataset": points(evaluation, seed=11)}


def sentence_data(train: int = 22, evaluation: int = 10) -> dict[str, Any]:
    datasets = {"train_dataset": sentences(train), "eval_dataset": sentences(evaluation, seed=12)}
    return {**datasets, "data_collator": pad}


def class_data(train: int = 22, evaluation: int = 10) -> dict[str, Any]:
    datasets = {
        "train_dataset": labelled_sentences(train),
        "eval_dataset": labelled_sentences(evaluation, seed=13),
    }
    return {**datasets, "data_collator": pad}


class Stream(IterableDataset):
    """Yields its items in order, without telling how many they are."""

    def __init__(self, items: list[dict[str, torch.Tensor]]):
        self.items = items

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(self.items)


class MeasuredStream(Stream):
    """An iterable dataset that knows its length."""

    def __len__(self) -> int:
        return len(self.items)


class NoisyPoints(Dataset):
    """Adds noise from the global torch generator, as augmentations do: when an item is fetched
    then matters.
    """

    def __init__(self, count: int, seed: int = 1):
        self.items = points(count, seed)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        item = self.items[index]
        return {"x": item["x"] + 0.1 * torch.randn(8), "labels": item["labels"]}
