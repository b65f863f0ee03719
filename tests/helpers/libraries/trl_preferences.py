"""Preferences with TRL: DPO, with and without precomputed reference, a reward model, and KTO."""

import os
import sys

from datasets import Dataset, load_from_disk
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

from helpers.libraries.tiny_models import (
    arguments,
    causal_lm,
    classifier,
    complete,
    sentences,
    tokenizer,
    train_and_resume,
)


def pairs(count: int, seed: int) -> Dataset:
    """A prompt, what is liked and what is not."""
    good, bad = sentences(count, seed), sentences(count, seed + 100)
    prompts = [text.split()[0] for text in good]
    return Dataset.from_dict({"prompt": prompts, "chosen": good, "rejected": bad})


def judged(count: int, seed: int) -> Dataset:
    """A prompt, an answer, and whether it is liked."""
    texts = sentences(count, seed)
    likes = [number % 2 == 0 for number in range(count)]
    return Dataset.from_dict(
        {"prompt": [text.split()[0] for text in texts], "completion": texts, "label": likes}
    )


def stored(data: Dataset, folder: str) -> Dataset:
    """Read from a folder, as caches of datasets in memory are not shared by several processes."""
    with complete(folder) as place:
        data.save_to_disk(place)
    return load_from_disk(folder)


def dpo(output_dir: str, folder: str, **more) -> DPOTrainer:
    args = DPOConfig(**arguments(output_dir, bf16=False, max_length=32, **more))
    kinds = {"train_dataset": (18, 0), "eval_dataset": (6, 1)}
    data = {name: stored(pairs(*size), os.path.join(folder, name)) for name, size in kinds.items()}
    return DPOTrainer(
        model=causal_lm(), ref_model=causal_lm(2), args=args, processing_class=tokenizer(), **data
    )


def reward(output_dir: str) -> RewardTrainer:
    args = RewardConfig(**arguments(output_dir, bf16=False, max_length=32))
    data = {
        name: pairs(count, seed)
        for name, count, seed in (("train_dataset", 40, 0), ("eval_dataset", 8, 1))
    }
    return RewardTrainer(model=classifier(), args=args, processing_class=tokenizer(), **data)


def kto(output_dir: str) -> KTOTrainer:
    args = KTOConfig(**arguments(output_dir, bf16=False, max_length=32))
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    data = {"train_dataset": judged(40, 0), "eval_dataset": judged(8, 1)}
    return KTOTrainer(
        model=causal_lm(), args=args, processing_class=tokenizer(), peft_config=lora, **data
    )


def main(folder: str) -> None:
    train_and_resume(lambda to: dpo(to, folder), os.path.join(folder, "dpo"))
    train_and_resume(
        lambda to: dpo(to, folder, precompute_ref_log_probs=True),
        os.path.join(folder, "precomputed"),
    )
    train_and_resume(reward, os.path.join(folder, "reward"))
    train_and_resume(kto, os.path.join(folder, "kto"))


if __name__ == "__main__":
    main(sys.argv[1])
