"""New tensors of the package say their device: with a GPU as torch's default device, and without."""

import ast
import contextlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import default_collate

from lightrainer import Trainer, TrainingArguments

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("package", "facade", "lightning_modules", "callbacks")
# Make batches, or tensors of the user's own, which take torch's default device as in the reference.
OF_USERS = ("lightning_modules/data/collators", "lightning_modules/tokenization", "keras", "facade/compat/models.py")
NAMES = [
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "eye", "arange", "linspace"),
    *("rand", "randn", "randint", "randperm"),
]
FACTORIES = {getattr(torch, name) for name in NAMES}


def test_factories_are_called_with_a_device():
    found = []
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if any(part in name for part in OF_USERS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
                of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
                if of_torch and not any(keyword.arg in ("device", None) for keyword in node.keywords):
                    found.append(f"{name}:{node.lineno}")
    assert not found


class MetaByDefault(TorchFunctionMode):
    """`torch.device("meta")` as default device, for calls of the package: torch's own loaders fail with it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        caller = Path(sys._getframe(1).f_code.co_filename)
        if func in FACTORIES and caller.is_relative_to(ROOT) and caller.relative_to(ROOT).parts[0] in FOLDERS:
            kwargs = {"device": "meta", **(kwargs or {})}
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, input_ids, labels):
        logits = self.layers(input_ids)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def numbers(folder, mode, **options):
    """Losses of a training with evaluations, of its resumption, and predictions."""
    data = [{"input_ids": torch.full((8,), float(index)), "labels": torch.tensor(index % 4)} for index in range(32)]
    options = {
        "max_steps": 6,
        "save_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_steps": 1,
        **options,
    }
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **options)
    found = []
    for resumed in (None, str(folder / "checkpoint-3")):
        trainer = Trainer(Net(), args, train_dataset=data, eval_dataset=data, data_collator=default_collate)
        with mode:
            trainer.train(resume_from_checkpoint=resumed)
            found.append(trainer.predict(data).predictions.tolist())
        found += [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history]
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": True, "gradient_accumulation_steps": 2}, {"train_sampling_strategy": "group_by_length"}],
    ids=["plain", "bf16, accumulation", "grouped"],
)
def test_a_training_needs_no_default_device(tmp_path, options):
    plain = numbers(tmp_path / "plain", contextlib.nullcontext(), **options)
    assert numbers(tmp_path / "meta", MetaByDefault(), **options) == plain


def test_the_mode_finds_a_tensor_without_a_device():
    """The negative control: the same call from a file of the package is on `meta`."""
    code = compile("tensor = torch.zeros(1)", str(ROOT / "facade" / "somewhere.py"), "exec")
    found = {"torch": torch}
    with MetaByDefault():
        exec(code, found)
    assert found["tensor"].is_meta
