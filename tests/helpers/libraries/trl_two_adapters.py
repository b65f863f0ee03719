"""DPO of a PEFT model, to which TRL adds a reference adapter: python trl_two_adapters.py
OUTPUT_FOLDER.
"""

import json
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer

from helpers.libraries.tiny_models import arguments, causal_lm, logs_of, tokenizer
from helpers.libraries.trl_preferences import pairs


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 3


def make(folder: str, seed: int = 4, callbacks=()) -> DPOTrainer:
    """The adapter begins with other weights for another seed."""
    base = causal_lm()
    torch.manual_seed(seed)
    lora = LoraConfig(
        r=2,
        lora_dropout=0.1,
        target_modules=["q_proj"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    )
    return DPOTrainer(
        model=get_peft_model(base, lora),
        args=DPOConfig(**arguments(folder, bf16=False, max_length=32)),
        train_dataset=pairs(18, 0),
        eval_dataset=pairs(6, 1),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def main(folder: str) -> None:
    """Train without a break, and stopped after half of the steps and resumed in a model of other
    adapters.
    """
    straight, cut = os.path.join(folder, "straight"), os.path.join(folder, "cut")
    whole = make(straight)
    whole.train()
    make(cut, callbacks=[Stop()]).train()
    resumed = make(cut, seed=5)
    resumed.train(resume_from_checkpoint=True)
    for trainer, place in ((whole, straight), (resumed, cut)):
        trainer.save_model(os.path.join(place, "final"))
        figures = {"adapters": sorted(trainer.model.peft_config), "logs": logs_of(trainer)}
        Path(place, "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
