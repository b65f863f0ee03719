"""One training with TRL: python trl_launched.py OUTPUT_FOLDER {sft,dpo} [ARGUMENTS AS JSON]."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from helpers.libraries.tiny_models import (
    arguments,
    causal_lm,
    logs_of,
    owner_of,
    sentences,
    tokenizer,
)
from helpers.libraries.trl_preferences import pairs, stored


def main(folder: str, kind: str, more: str = "{}") -> None:
    args = {"bf16": False, "max_length": 32, "save_strategy": "no", **json.loads(more)}
    if kind == "sft":
        data = Dataset.from_dict({"text": sentences(40)})
        trainer = SFTTrainer(
            model=causal_lm(),
            args=SFTConfig(**arguments(folder, **args)),
            train_dataset=data,
            eval_dataset=data.select(range(8)),
            processing_class=tokenizer(),
        )
    else:
        data = {
            name: stored(pairs(18, 0), os.path.join(folder, name))
            for name in ("train_dataset", "eval_dataset")
        }
        trainer = DPOTrainer(
            model=causal_lm(),
            ref_model=causal_lm(2),
            args=DPOConfig(**arguments(folder, **args)),
            processing_class=tokenizer(),
            **data,
        )
    trainer.train()
    trainer.save_model(os.path.join(folder, "model"))
    if trainer.is_world_process_zero():
        figures = {
            "trainer_of": owner_of(type(trainer)),
            "plan": repr(trainer.plan),
            "logs": logs_of(trainer),
        }
        Path(folder, "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
