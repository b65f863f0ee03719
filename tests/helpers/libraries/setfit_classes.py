"""Few-shot classification with SetFit: a body and a head, evaluated, saved, and loaded again."""

import os
import sys

import numpy as np
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

from helpers.libraries.sentence_embeddings import encoder
from helpers.libraries.tiny_models import record, save_bert, sentences, without_times


def classed(count: int, seed: int) -> Dataset:
    """Sentences, and whether one of the first words of the list is in them."""
    texts = sentences(count, seed)
    return Dataset.from_dict(
        {"text": texts, "label": [int("sun" in text or "moon" in text) for text in texts]}
    )


def share_right(predicted, labels) -> dict[str, float]:
    """In the place of a metric that would be downloaded."""
    return {"share_right": float(np.mean(np.asarray(predicted) == np.asarray(labels)))}


def main(folder: str) -> None:
    base = os.path.join(folder, "base")
    save_bert(base)
    model = SetFitModel(encoder(base), LogisticRegression())
    args = TrainingArguments(
        output_dir=os.path.join(folder, "run"),
        batch_size=4,
        max_steps=6,
        body_learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        load_best_model_at_end=True,
        report_to=[],
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=classed(16, 0),
        eval_dataset=classed(12, 1),
        metric=share_right,
    )
    trainer.train()
    metrics = trainer.evaluate()
    model.save_pretrained(os.path.join(folder, "final"))
    again = SetFitModel.from_pretrained(os.path.join(folder, "final"))
    texts = sentences(10, 2)
    record(
        folder,
        trainer.st_trainer,
        metrics=without_times(metrics),
        predicted=again.predict_proba(texts),
    )


if __name__ == "__main__":
    main(sys.argv[1])
