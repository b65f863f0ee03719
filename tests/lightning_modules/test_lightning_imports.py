"""Lightning is imported without `transformers`, and what needs it finds it all the same."""

import subprocess
import sys

TRAIN = """
import sys, tempfile, torch
from lightrainer import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.linear(x), labels), None

data = [{"x": torch.zeros(2), "labels": 0}]
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(folder, max_steps=1, use_cpu=True, save_strategy="no")
    Trainer(Model(), args, train_dataset=data).train()
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_training_does_not_load_transformers():
    loaded = run(TRAIN + "print(sorted(name for name in sys.modules if name.split('.')[0] == 'transformers'))")
    assert loaded.splitlines()[-1] == "[]"


def test_the_same_training_under_lightning_alone_does():
    """Negative control: without lightrainer's import, torchmetrics loads it."""
    assert run("import sys, lightning.pytorch; print('transformers' in sys.modules)").strip() == "True"


def test_what_was_deferred_is_the_real_thing_when_it_is_used():
    program = """
import lightrainer.lightning_modules.engine
from torchmetrics.functional.text import bert
import transformers
print(bert.AutoTokenizer.from_pretrained.__func__ is transformers.AutoTokenizer.from_pretrained.__func__)
"""
    assert run(program).strip() == "True"


def test_transformers_that_is_loaded_already_stays():
    program = """
import transformers
import lightrainer.lightning_modules.engine, sys
print(sys.modules["transformers"] is transformers, hasattr(transformers, "__version__"))
"""
    assert run(program).strip() == "True True"
