"""The most memory that training steps and a resumption take, of a GPT of 10 million parameters with AdamW.

Each in a fresh process: how far the resident memory grows in `train`, against the reference.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, interleaved, library, medians, quiet_arguments, report
from .evaluation import peak_growth

WIDTH, LAYERS, TOKENS, LENGTH, BATCH = 320, 8, 256, 64, 4
ROUNDS = 3
CASES = {"steps": "a training step", "accumulated": "a step of 4 accumulated batches", "resume": "a resumption"}


class Gpt(nn.Module):
    """A decoder of 10 million parameters."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The cross-entropy of the next tokens, for ids of shape (batch, length)."""
        length = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(self.tokens(input_ids) + self.places.weight[:length], mask=mask, is_causal=True)
        logits = self.head(hidden)[:, :-1].flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, labels[:, 1:].flatten())}


def trainer(name: str, folder: str, **changes: Any) -> Any:
    ids = torch.randint(TOKENS, (256, LENGTH), generator=torch.Generator().manual_seed(0))
    arguments = quiet_arguments(name, folder, per_device_train_batch_size=BATCH, **changes)
    data = [{"input_ids": row, "labels": row} for row in ids]
    return library(name).Trainer(Gpt(), arguments, train_dataset=data, data_collator=default_collate)


def measure(name: str, case: str) -> float:
    """Megabytes by which this process grows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        tiny = library(name).Trainer(
            nn.Linear(1, 1), quiet_arguments(name, folder, max_steps=1), train_dataset=[{"input": torch.ones(1)}]
        )
        tiny.compute_loss = lambda model, inputs, **_: model(inputs["input"]).sum()
        tiny.train()  # what is loaded or made once is there from now on
        options: dict[str, Any] = {"max_steps": 3}
        if case == "accumulated":
            options["gradient_accumulation_steps"] = 4
        if case == "resume":
            # In a process of its own: the memory that it gave back would be used again.
            command = [sys.executable, "-m", "benchmarks.memory", name, "save", folder]
            subprocess.run(command, check=True, capture_output=True)
        trained = trainer(name, folder, **options)
        with peak_growth() as growth:
            trained.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if case == "resume" else None)
    return growth[0] / 2**20


def save(name: str, folder: str) -> None:
    torch.set_num_threads(1)
    trainer(name, folder, max_steps=2, save_strategy="steps", save_steps=2).train()


def in_process(name: str, case: str) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", name, case]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> list[Figure]:
    rows: list[tuple[str, str]] = []
    results, figures = {}, []
    for case, what in CASES.items():
        grown = medians(interleaved(ROUNDS, {name: partial(in_process, name, case) for name in LIBRARIES}))
        rows += [(f"{name}, peak of {what}", f"{value:5.0f} MB") for name, value in grown.items()]
        results[case] = grown
        figures.append(Figure(f"peak of memory, {what}", grown["lightrainer"] / grown["transformers"], 1.0))
    return report("memory", rows, {"megabytes": results}, figures)


if __name__ == "__main__":
    if sys.argv[2:3] == ["save"]:
        save(sys.argv[1], sys.argv[3])
    elif len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
