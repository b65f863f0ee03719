"""PEFT models in the Trainer itself: LoRA trained, resumed, the best adapter loaded, merged; and
prompt tuning.
"""

import os
import sys

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from helpers.libraries.tiny_models import (
    arguments,
    causal_lm,
    record,
    sentences,
    tokenizer,
    train_and_resume,
)


def make(config, output_dir: str, **more) -> Trainer:
    words = tokenizer()
    model = get_peft_model(causal_lm(), config)
    data = {"train_dataset": (18, 0), "eval_dataset": (8, 1)}
    return Trainer(
        model=model,
        args=TrainingArguments(**arguments(output_dir, **more)),
        data_collator=DataCollatorForLanguageModeling(words, mlm=False),
        processing_class=words,
        **{
            name: Dataset.from_list([words(text) for text in sentences(*counts)])
            for name, counts in data.items()
        },
    )


def merged(folder: str) -> torch.Tensor:
    """Return the output of the saved adapter for a sentence, merged into the model that it was
    trained on.
    """
    model = PeftModel.from_pretrained(causal_lm(), folder).merge_and_unload()
    return model(torch.arange(3, 9)[None]).logits.detach().sum(-1)


def main(folder: str) -> None:
    lora = LoraConfig(
        r=2,
        lora_alpha=4,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )
    place = os.path.join(folder, "lora")
    trainer = train_and_resume(lambda to: make(lora, to, load_best_model_at_end=True), place)
    predictions = trainer.predict(trainer.eval_dataset.select(range(2))).predictions
    record(
        os.path.join(folder, "after"),
        trainer,
        merged=merged(os.path.join(place, "final")),
        logits=predictions.sum(-1),
    )
    whole = LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    train_and_resume(
        lambda to: make(
            whole,
            to,
            max_grad_norm=0.5,
            weight_decay=0.1,
            lr_scheduler_type="cosine",
            warmup_steps=2,
        ),
        os.path.join(folder, "modules_to_save"),
    )
    prompt = PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    train_and_resume(
        lambda to: make(prompt, to, prediction_loss_only=True), os.path.join(folder, "prompt")
    )


if __name__ == "__main__":
    main(sys.argv[1])
