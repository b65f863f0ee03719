"""Make the pictures of the documentation: `python docs/scripts/screenshots.py [NAME ...]`.

What a terminal shows is drawn by rich as SVG; the report is the picture that the training leaves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).resolve().parents[1] / "images"
TRAIN = """
import torch
from lightrainer import (
    MemoryCallback,
    RunReportCallback,
    ThroughputCallback,
    Trainer,
    TrainingArguments,
)


class Classifier(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))

    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


torch.manual_seed(0)
samples = [{"x": x, "labels": (x[:4] + x[4:].sin()).argmax()} for x in torch.randn(2560, 8)]
args = TrainingArguments(
    "output",
    num_train_epochs=3,
    learning_rate=0.01,
    logging_steps=20,
    eval_strategy="steps",
    eval_steps=80,
    save_strategy="no",
    warmup_steps=0.1,
)
data = {"train_dataset": samples[:2048], "eval_dataset": samples[2048:]}
callbacks = [RunReportCallback(), ThroughputCallback(), MemoryCallback()]
Trainer(Classifier(), args, **data, compute_metrics=accuracy, callbacks=callbacks).train()
"""
ESTIMATE = (
    "estimate --model 8B --gpus 64 --fsdp full_shard --gradient-checkpointing --batch 4 "
    "--sequence 4096"
)


def plan() -> None:
    """Draw the output of `lightrainer plan`."""
    draw(
        "plan",
        "lightrainer plan --bf16 --use_cpu",
        lightrainer("plan", "--bf16", "--use_cpu"),
        width=125,
    )


def estimate() -> None:
    """Draw the output of `lightrainer estimate`."""
    draw("estimate", f"lightrainer {ESTIMATE}", lightrainer(*ESTIMATE.split()), width=112)


def run() -> None:
    """Draw the bar half-way through a training, and the report that it leaves."""
    Path("train.py").write_text(TRAIN)
    environment = {**os.environ, "TQDM_NCOLS": "100", "TQDM_MININTERVAL": "0.05"}
    shown = subprocess.run(
        [sys.executable, "train.py"], check=True, capture_output=True, text=True, env=environment
    )
    bars = [
        line
        for line in re.split(r"[\r\n]", shown.stderr)
        if re.search(r"\b[4-7]\d%.*/768.*loss=", line)
    ]
    logs = [line for line in shown.stdout.splitlines() if line.startswith("{")][:3]
    draw("progress-bar", "python train.py", "\n".join([*logs, bars[-1].strip()]), width=130)
    with Image.open("output/report.png") as picture:
        picture.convert("RGB").quantize(128).save(IMAGES / "run-report.png", optimize=True)


def lightrainer(*words: str) -> str:
    """Return the output of a command."""
    command = [sys.executable, "-m", "lightrainer", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def draw(name: str, command: str, printed: str, width: int) -> None:
    """Draw a terminal with a command and what it prints, as SVG that fetches no fonts."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere)
        console.print(Text(f"$ {command}\n{printed}".rstrip()), soft_wrap=False)
        picture = console.export_svg(title="")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace(
        "Fira Code", "Menlo, Consolas"
    )
    (IMAGES / f"{name}.svg").write_text(picture, encoding="utf-8")


PICTURES: dict[str, Callable[[], None]] = {item.__name__: item for item in (plan, estimate, run)}

if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for picture in sys.argv[1:] or PICTURES:
            PICTURES[picture]()
