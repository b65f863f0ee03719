"""Trains a head of BERT, whose loss is a mean, on unevenly many labels, under each strategy that
shares its steps.

torchrun --nproc_per_node 2 mean_loss_script.py OUTPUT_FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch

# before there is a group, see facade/distributed/process_group.py
import torch.distributed.nn.functional

from helpers.processes.rank_training import QUIET
from lightrainer import Trainer, TrainingArguments

STRATEGIES = {
    "ddp": {},
    "fsdp 1": {"fsdp": "full_shard", "fsdp_config": {"version": 1}},
    "fsdp 2": {"fsdp": "full_shard", "fsdp_config": {"version": 2}},
}
STEPS = {
    "max_steps": 2,
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_grad_norm": 1e6,
    "save_strategy": "no",
}


def tagger():
    from transformers import BertConfig, BertForTokenClassification

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    return BertForTokenClassification(
        BertConfig(vocab_size=29, num_labels=3, **sizes, **without_dropout)
    )


def sentences():
    """16 rows of 8 tokens, of which the first 0 to 5 have no label."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for index in range(16):
        ids = torch.randint(3, 29, (8,), generator=generator)
        labels = torch.randint(3, (8,), generator=generator)
        labels[: index % 6] = -100
        samples.append({"input_ids": ids, "labels": labels})
    return samples


def logs(folder, rows, accumulation, **options):
    """The loss and the norm of the gradient of each step."""
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        **STEPS,
        **QUIET,
        **options,
    )
    trainer = Trainer(tagger(), args, train_dataset=sentences())
    trainer.train()
    return [[log["loss"], log["grad_norm"]] for log in trainer.state.log_history if "loss" in log]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {}
    for name, options in STRATEGIES.items():
        for rows, accumulation in ((4, 1), (2, 2)):
            found[f"{name}, {rows} x {accumulation}"] = logs(
                folder / "output", rows, accumulation, **options
            )
    if os.environ["RANK"] == "0":
        (folder / "found.json").write_text(json.dumps(found))
