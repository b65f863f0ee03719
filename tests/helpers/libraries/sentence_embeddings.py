"""Embeddings of sentences with sentence-transformers: an evaluator and a best model, two
datasets and losses, pairs.
"""

import functools
import os
import sys

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.cross_encoder import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
)
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from helpers.libraries.tiny_models import arguments, save_bert, sentences, train_and_resume


def encoder(folder: str) -> SentenceTransformer:
    """A tiny BERT from a folder, with a mean over its tokens."""
    words = Transformer(folder)
    return SentenceTransformer(
        modules=[words, Pooling(words.get_embedding_dimension())], device="cpu"
    )


def scored(count: int, seed: int) -> Dataset:
    """Pairs of sentences, and how alike they are."""
    left, right = sentences(count, seed), sentences(count, seed + 100)
    alike = [
        len(set(first.split()) & set(second.split())) / 8
        for first, second in zip(left, right, strict=True)
    ]
    return Dataset.from_dict({"sentence1": left, "sentence2": right, "score": alike})


def classed(count: int, seed: int) -> Dataset:
    """Pairs of sentences, and which of two classes they are in."""
    pairs = scored(count, seed)
    label = [number % 2 for number in range(count)]
    return Dataset.from_dict(
        {"sentence1": pairs["sentence1"], "sentence2": pairs["sentence2"], "label": label}
    )


def make(base: str, output_dir: str, kind: str) -> SentenceTransformerTrainer:
    torch.manual_seed(3)  # the head of the second loss
    model = encoder(base)
    train, check = scored(18, 0), scored(8, 1)
    more = {}
    if kind == "evaluator":
        evaluator = EmbeddingSimilarityEvaluator(
            check["sentence1"], check["sentence2"], check["score"]
        )
        more = {"loss": losses.CosineSimilarityLoss(model), "evaluator": evaluator}
        best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_spearman_cosine"}
    else:
        heads = {"alike": losses.CosineSimilarityLoss(model)}
        heads["class"] = losses.SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=2)
        more, best = {"loss": heads}, {}
        train, check = (
            {"alike": train, "class": classed(10, 2)},
            {
                "alike": check,
                "class": classed(8, 3),
            },
        )
    args = SentenceTransformerTrainingArguments(**arguments(output_dir, **best))
    return SentenceTransformerTrainer(
        model=model, args=args, train_dataset=train, eval_dataset=check, **more
    )


def cached(base: str, output_dir: str) -> SentenceTransformerTrainer:
    """Gradient caching: a backward pass for each two sentences of a batch, within that of the
    loss.
    """
    model = encoder(base)
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**arguments(output_dir)),
        train_dataset=scored(18, 0).remove_columns("score"),
        eval_dataset=scored(8, 1).remove_columns("score"),
        loss=losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2),
    )


def cross(base: str, output_dir: str) -> CrossEncoderTrainer:
    """A model that reads both sentences at once."""
    torch.manual_seed(3)
    model = CrossEncoder(base, num_labels=1, device="cpu")
    data = {"train_dataset": classed(18, 0), "eval_dataset": classed(8, 1)}
    args = CrossEncoderTrainingArguments(**arguments(output_dir))
    return CrossEncoderTrainer(model=model, args=args, loss=BinaryCrossEntropyLoss(model), **data)


def main(folder: str, *kinds: str) -> None:
    base = os.path.join(folder, "base")
    save_bert(base)
    makers = {"cross": cross, "cached": cached}
    for kind in kinds or ("evaluator", "datasets", "cross", "cached"):
        maker = makers.get(kind) or functools.partial(make, kind=kind)
        train_and_resume(functools.partial(maker, base), os.path.join(folder, kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
