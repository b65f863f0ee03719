"""Tokens a second of a tiny GPT on documents of skewed lengths: padded, batches of a number of
tokens, packed.

The three train one epoch on the same documents, in batches of about the same memory; tokens of
padding do not count.
"""

import tempfile
import time
from typing import Any

import torch

from .common import Figure, interleaved, library, medians, quiet_arguments, report

DOCUMENTS, LONGEST, BUDGET = 400, 256, 2048
ROUNDS = 5


def documents() -> list[dict[str, list[int]]]:
    """Documents of a log-normal number of tokens: half of them have fewer than 40, few have
    hundreds.
    """
    torch.manual_seed(0)
    lengths = torch.empty(DOCUMENTS).log_normal_(3.7, 0.9).long().clamp(4, LONGEST)
    return [{"input_ids": torch.randint(1, 256, (length,)).tolist()} for length in lengths.tolist()]


def gpt() -> Any:
    library("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "n_embd": 128,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": LONGEST,
        "vocab_size": 256,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="sdpa"))


def padded(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    ids, labels = (torch.nn.utils.rnn.pad_sequence(rows, True, value) for value in (0, -100))
    return {"input_ids": ids, "labels": labels, "attention_mask": (labels != -100).long()}


def seconds(items: list[dict[str, list[int]]], collator: Any, **ways: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        inputs = {"args": quiet_arguments("lightrainer", folder, num_train_epochs=1, **ways)}
        trainer = library("lightrainer").Trainer(
            gpt(), train_dataset=items, data_collator=collator, **inputs
        )
        began = time.perf_counter()
        trainer.train()
        return time.perf_counter() - began


def main() -> list[Figure]:
    torch.set_num_threads(1)
    items = documents()
    tokens = sum(len(item["input_ids"]) for item in items)
    packing = library("lightrainer").DataCollatorWithPacking(LONGEST)
    by_tokens = {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": BUDGET}
    full = BUDGET * DOCUMENTS // tokens
    candidates = {
        "padding": lambda: seconds(items, padded, per_device_train_batch_size=BUDGET // LONGEST),
        "token budget": lambda: seconds(items, padded, **by_tokens),
        "packing": lambda: seconds(items, packing, per_device_train_batch_size=full),
    }
    measured = interleaved(ROUNDS, candidates)
    taken = medians(measured)
    rows = [
        (
            name,
            (
                f"{tokens / value:8.0f} tokens a second, {taken['padding'] / value:.2f} times "
                "those of padding"
            ),
        )
        for name, value in taken.items()
    ]
    figures = [
        Figure(f"time of a token with {name}, against padding", taken[name] / taken["padding"], 0.8)
        for name in ("token budget", "packing")
    ]
    return report(
        "packing", rows, {"seconds": taken, "rounds": measured, "tokens": tokens}, figures
    )


if __name__ == "__main__":
    main()
