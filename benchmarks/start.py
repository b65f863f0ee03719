"""The time of a whole process that builds a tiny trainer and finishes its first step: lightrainer / reference.

The promise is at most 1.0.
"""

import os
import subprocess
import sys
import time

import torch

from .common import LIBRARIES, interleaved, medians, report

ROUNDS = 7

SCRIPT = """
import sys, tempfile
import torch
from torch import nn

if sys.argv[1] == "transformers":
    from transformers import Trainer, TrainingArguments
else:
    from lightrainer import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": (self.layer(x)[:, 0] - labels).square().mean()}


dataset = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(8)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True
    )
    output = Trainer(Model(), arguments, train_dataset=dataset).train()
assert output.global_step == 1
"""


def process(name: str) -> float:
    """Seconds from the start to the end of a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, name], check=True, env=environment, capture_output=True
    )
    return time.perf_counter() - begin


def main() -> None:
    torch.set_num_threads(1)
    for name in LIBRARIES:
        process(name)  # fills the disk cache and writes the compiled modules
    measured = interleaved(ROUNDS, {name: lambda name=name: process(name) for name in LIBRARIES})
    seconds = medians(measured)
    ratio = seconds["lightrainer"] / seconds["transformers"]
    rows = [(f"{name}, process with one step", f"{value:5.2f} s") for name, value in seconds.items()]
    rows.append(("lightrainer / transformers", f"{ratio:.2f}"))
    report("start", rows, {"seconds": seconds, "ratio": ratio, "rounds": measured})


if __name__ == "__main__":
    main()
