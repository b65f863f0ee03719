"""The processor time of a whole process that builds a tiny trainer and finishes its first step,
against the reference.

Once with `from lightrainer import`, and once as an unchanged script: plain Python against
`python -m lightrainer`. All modules are compiled before, as those of an installed package are.
"""

import tempfile
from pathlib import Path

from .common import Figure, interleaved, medians, report
from .processes import spent_by

ROUNDS = 5

SCRIPT = """
import tempfile
import torch
from torch import nn
from {library} import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {{"loss": (self.layer(x)[:, 0] - labels).square().mean()}}


dataset = [{{"x": torch.ones(4), "labels": torch.tensor(1.0)}} for _ in range(8)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True
    )
    output = Trainer(Model(), arguments, train_dataset=dataset).train()
assert output.global_step == 1
"""


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        scripts = {
            name: Path(folder, f"with_{name}.py") for name in ("transformers", "lightrainer")
        }
        for name, script in scripts.items():
            script.write_text(SCRIPT.format(library=name), encoding="utf-8")
        commands = {
            "transformers": [scripts["transformers"]],
            "lightrainer": [scripts["lightrainer"]],
            "the runner": ["-m", "lightrainer", scripts["transformers"]],
        }
        for words in commands.values():
            spent_by(words)  # fills the disk cache and compiles the modules
        candidates = {
            name: lambda words=words: spent_by(words).processor for name, words in commands.items()
        }
        measured = interleaved(ROUNDS, candidates)
    seconds = medians(measured)
    rows = [
        (f"{name}, process with one step", f"{value:5.2f} s of the processor")
        for name, value in seconds.items()
    ]
    figures = [
        Figure(
            "start to the end of the first step",
            seconds["lightrainer"] / seconds["transformers"],
            0.65,
        ),
        Figure(
            "start of an unchanged script", seconds["the runner"] / seconds["transformers"], 0.9
        ),
    ]
    return report("start", rows, {"seconds": seconds, "rounds": measured}, figures)


if __name__ == "__main__":
    main()
