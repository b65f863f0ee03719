"""Lightning is imported without `transformers`, and what needs it finds it all the same."""

from pathlib import Path

from starting import finished_code

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


def last_line(program: str, folder: Path) -> str:
    """Of what a process says that has imported torch, and neither of the libraries."""
    return finished_code(program, folder, library="torch").splitlines()[-1]


def test_a_training_does_not_load_transformers(tmp_path):
    program = TRAIN + "print(sorted(name for name in sys.modules if name.split('.')[0] == 'transformers'))"
    assert last_line(program, tmp_path) == "[]"


def test_the_same_training_under_lightning_alone_does(tmp_path):
    """Negative control: without lightrainer's import, torchmetrics loads it."""
    program = "import sys, lightning.pytorch; print('transformers' in sys.modules)"
    assert last_line(program, tmp_path) == "True"


def test_what_was_deferred_is_the_real_thing_when_it_is_used(tmp_path):
    program = """
import lightrainer.lightning_modules.internals.lightning_internals
from torchmetrics.functional.text import bert
import transformers
print(bert.AutoTokenizer.from_pretrained.__func__ is transformers.AutoTokenizer.from_pretrained.__func__)
"""
    assert last_line(program, tmp_path) == "True"


def test_transformers_that_is_loaded_already_stays(tmp_path):
    program = """
import transformers
import lightrainer.lightning_modules.internals.lightning_internals, sys
print(sys.modules["transformers"] is transformers, hasattr(transformers, "__version__"))
"""
    assert last_line(program, tmp_path) == "True True"
