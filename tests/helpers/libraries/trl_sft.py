"""Supervised fine-tuning with TRL: of texts, packed with accumulation, and of chats with an
adapter.
"""

import os
import sys

from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from helpers.libraries.tiny_models import (
    arguments,
    causal_lm,
    sentences,
    tokenizer,
    train_and_resume,
)


def chats(texts: list[str]) -> Dataset:
    """Each text as an answer."""
    messages = [
        [{"role": "user", "content": text.split()[0]}, {"role": "assistant", "content": text}]
        for text in texts
    ]
    return Dataset.from_dict({"messages": messages})


def make(
    output_dir: str,
    data=lambda texts: Dataset.from_dict({"text": texts}),
    peft_config=None,
    **more,
) -> SFTTrainer:
    args = SFTConfig(**arguments(output_dir, **{"max_length": 32, "bf16": False, **more}))
    return SFTTrainer(
        model=causal_lm(),
        args=args,
        train_dataset=data(sentences(18 if data is chats else 60)),
        eval_dataset=data(sentences(8, seed=1)),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


def main(folder: str) -> None:
    train_and_resume(make, os.path.join(folder, "texts"))
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    train_and_resume(
        lambda to: make(to, chats, lora, load_best_model_at_end=True),
        os.path.join(folder, "adapter"),
    )
    train_and_resume(
        lambda to: make(
            to, packing=True, packing_strategy="wrapped", per_device_train_batch_size=1
        ),
        os.path.join(folder, "packed"),
    )


if __name__ == "__main__":
    main(sys.argv[1])
