"""Trains a head of BERT, whose loss is a mean, on unevenly many labels, under each strategy that
shares its steps; and a regression on batches of different sizes.

torchrun --nproc_per_node 2 mean_loss_script.py OUTPUT_FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch

# before there is a group, see facade/distributed/process_group.py
import torch.distributed.nn.functional
from torch.utils.data import DataLoader

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


class Regression(torch.nn.Module):
    """Its loss is a mean over rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, input_ids, labels):
        predictions = self.layer(input_ids[:, :4] / 29).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(predictions, labels)}


class Experts(torch.nn.Module):
    """Adds a mean over its batch, as that of routers, to a loss that is divided by the items."""

    router_aux_loss_coef = 0.5

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(29, 3)

    def forward(self, input_ids, labels, num_items_in_batch=None):
        logits = self.table(input_ids)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="sum"
        )
        aux_loss = logits.square().mean()
        items = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return {
            "loss": loss / items + self.router_aux_loss_coef * aux_loss,
            "aux_loss": aux_loss,
        }


def evaluated_experts(folder, rows):
    samples = [{**sentence, "labels": sentence["input_ids"] % 3} for sentence in sentences()]
    args = TrainingArguments(str(folder), per_device_eval_batch_size=rows, **QUIET)
    trainer = Trainer(Experts(), args, eval_dataset=samples)
    return trainer.evaluate()["eval_loss"]


class OwnBatches(Trainer):
    def get_train_dataloader(self):
        batches = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9]]
        loader = DataLoader(
            self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator
        )
        return self.accelerator.prepare(loader)


def numbers(count):
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row.sum() + index} for index, row in enumerate(rows)]


def sentences_with_values():
    """Rows of 8 and 24 tokens, so that a budget of tokens holds 3 of them or 1."""
    samples = []
    for index, sentence in enumerate(sentences()):
        repeats = 3 if index % 3 == 2 else 1
        values = {
            "input_ids": sentence["input_ids"].repeat(repeats),
            "labels": torch.tensor(index),
        }
        samples.append(values)
    return samples


def pad(samples):
    ids = [sample["input_ids"] for sample in samples]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "labels": torch.stack([sample["labels"].float() for sample in samples]),
    }


BUDGET = {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": 24}
WITHOUT_FILLING = {"accelerator_config": {"even_batches": False}}
UNEVEN_ROWS = {
    "own batches": (OwnBatches, numbers(10), {}),
    "token budget": (Trainer, sentences_with_values(), BUDGET),
    "short last batch": (Trainer, numbers(11), WITHOUT_FILLING),
}
"""Kinds of data in which batches have different numbers of rows: Trainer, samples, arguments."""


def logs_of_uneven_rows(folder, kind, accumulation):
    """The loss and the norm of the gradient of each step of two batches."""
    trainer_class, samples, options = UNEVEN_ROWS[kind]
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=3 if kind == "short last batch" else 8,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        **STEPS,
        **QUIET,
        **options,
    )
    trainer = trainer_class(Regression(), args, train_dataset=samples, data_collator=pad)
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
    for kind in UNEVEN_ROWS:
        found[kind] = logs_of_uneven_rows(folder / "uneven", kind, 1)
    found["experts"] = evaluated_experts(folder / "experts", 4)
    if os.environ["RANK"] == "0":
        (folder / "found.json").write_text(json.dumps(found))
