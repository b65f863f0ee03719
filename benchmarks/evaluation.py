"""The time of an evaluation whose predictions are large, and how it grows when the data doubles.

Logits of 4,000 classes in batches of 8, which `compute_metrics` wants to see. Linear growth is a factor of 2.
"""

import contextlib
import io
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import default_collate

from .common import LIBRARIES, interleaved, library, medians, quiet_arguments, report

CLASSES = 4000
BATCH = 8
ROUNDS = 2  # the larger one takes the reference some 10 s
MEGABYTES = (32, 64)


class Wide(nn.Module):
    """Spreads one number over many classes: nearly no computation, large logits."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, CLASSES))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of shape (batch, classes) for `x` of shape (batch,)."""
        logits = x[:, None] * self.weight
        return {"loss": logits[:, 0].mean(), "logits": logits}


def evaluation(name: str, megabytes: int) -> float:
    """Seconds of one `evaluate`."""
    api = library(name)
    count = megabytes * 2**20 // (4 * CLASSES)
    dataset = [{"x": torch.tensor(float(i)), "labels": torch.tensor(i % CLASSES)} for i in range(count)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = api.Trainer(
            Wide(),
            quiet_arguments(name, folder, per_device_eval_batch_size=BATCH),
            eval_dataset=dataset,
            data_collator=default_collate,
            compute_metrics=lambda prediction: {"rows": len(prediction.predictions)},
        )
        begin = time.perf_counter()
        metrics = trainer.evaluate()
        seconds = time.perf_counter() - begin
    assert metrics["eval_rows"] == count
    return seconds


def main() -> None:
    torch.set_num_threads(1)
    keys = {f"{name}, {size} MB": (name, size) for size in MEGABYTES for name in LIBRARIES}
    measured = interleaved(ROUNDS, {key: lambda of=of: evaluation(*of) for key, of in keys.items()})
    seconds = medians(measured)
    small, large = MEGABYTES
    growth = {name: seconds[f"{name}, {large} MB"] / seconds[f"{name}, {small} MB"] for name in LIBRARIES}
    ratio = seconds[f"lightrainer, {large} MB"] / seconds[f"transformers, {large} MB"]
    rows = [(f"{key} of logits", f"{value:6.3f} s") for key, value in seconds.items()]
    rows += [(f"{name}, twice the data", f"{value:.1f} times the time") for name, value in growth.items()]
    rows.append((f"lightrainer / transformers at {large} MB", f"{ratio:.3f}"))
    report("evaluation", rows, {"seconds": seconds, "growth": growth, "ratio": ratio})


if __name__ == "__main__":
    main()
