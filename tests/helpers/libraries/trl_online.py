"""Answers that are made while it trains, with TRL: GRPO and RLOO with a reward of our own,
without vLLM.
"""

import itertools
import os
import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from helpers.libraries.tiny_models import (
    WORDS,
    arguments,
    causal_lm,
    complete,
    sentences,
    tokenizer,
    train_and_resume,
)


def likes_order(completions: list[str], **others) -> list[float]:
    """How many words follow from the one before them."""
    follows = {word: WORDS[(number + 1) % len(WORDS)] for number, word in enumerate(WORDS)}
    counts = []
    for text in completions:
        words = text.split()
        counts.append(
            float(
                sum(
                    follows.get(previous) == successor
                    for previous, successor in itertools.pairwise(words)
                )
            )
        )
    return counts


def make(trainer: type, config: type, output_dir: str, model=None, **more):
    options = arguments(output_dir, bf16=False, max_completion_length=8, num_generations=4, **more)
    return trainer(
        model=model or causal_lm(),
        reward_funcs=likes_order,
        args=config(**options),
        train_dataset=Dataset.from_dict({"prompt": [text.split()[0] for text in sentences(24)]}),
        # Just enough prompts to fill the round of two processes: transformers takes their number
        # for that of the answers, and drops some of an incomplete round.
        eval_dataset=Dataset.from_dict(
            {"prompt": [text.split()[0] for text in sentences(8, seed=1)]}
        ),
        processing_class=tokenizer(),
    )


def main(folder: str) -> None:
    train_and_resume(lambda to: make(GRPOTrainer, GRPOConfig, to), os.path.join(folder, "grpo"))
    # a folder, from which the trainer loads the model and its reference
    base = os.path.join(folder, "base")
    with complete(base) as place:
        causal_lm().save_pretrained(place)
    often = {
        "num_iterations": 2,
        "steps_per_generation": 2,
        "beta": 0.1,
        "model_init_kwargs": {"dtype": "float32"},
    }
    train_and_resume(
        lambda to: make(GRPOTrainer, GRPOConfig, to, base, **often),
        os.path.join(folder, "reference"),
    )
    train_and_resume(
        lambda to: make(RLOOTrainer, RLOOConfig, to, base), os.path.join(folder, "rloo")
    )


if __name__ == "__main__":
    main(sys.argv[1])
