"""A typical script with the Trainer of the reference, which a sweep runs unchanged.

    sweep_script.py [--width 6] [--out out] [--kill MARKER] [--slow SECONDS]

With `--kill` the process kills itself with SIGKILL after its third step, if the file does not exist
yet.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x, labels=None):
        logits = self.second(torch.tanh(self.first(x)))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def points(count, seed):
    features = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return [{"x": x, "labels": x[:3].argmax()} for x in features]


class Trouble(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        # in one piece: two processes may write to one file
        print(f"step {state.global_step}\n", end="", flush=True)
        time.sleep(options.slow)
        if options.kill and state.global_step == 3 and not os.path.exists(options.kill):
            # they are written in the background
            while not any(Path(args.output_dir).glob("checkpoint-*")):
                time.sleep(0.01)
            open(options.kill, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=6)
parser.add_argument("--out", default="out")
parser.add_argument("--kill")
parser.add_argument("--slow", type=float, default=0)
options = parser.parse_args()
settings = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_steps": 1,
    "logging_steps": 100,
    "learning_rate": 1e-5,
}
settings |= {"per_device_train_batch_size": 4, "num_train_epochs": 1}
arguments = TrainingArguments(
    options.out, **settings, report_to="none", use_cpu=True, disable_tqdm=True
)
torch.manual_seed(arguments.seed)
print("rate", arguments.learning_rate, "width", options.width)
data = {"train_dataset": points(16, 1), "eval_dataset": points(8, 2)}
Trainer(Model(options.width), arguments, **data, callbacks=[Trouble()]).train()
