"""The recipes are true: what they say is done to a copy of the code, and what they show at the
end runs there.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "develop" / "recipes.md"
FENCE = re.compile(
    r"^( *)```(\w+)(?: title=\"([^\"\n]*)\")?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
TINY_RUN = '''
"""Trains a tiny model for a moment."""

import tempfile

import torch
from torch import nn

from lightrainer import Trainer, TrainingArguments


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}


def trained(callbacks=(), **given):
    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": torch.tensor(n % 2)} for n in range(64)]
    usual = {"output_dir": tempfile.mkdtemp(), "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    trainer = Trainer(Tiny(), TrainingArguments(**{**usual, **given}), train_dataset=data, callbacks=list(callbacks))
    trainer.train()
    return trainer
'''


def recipes():
    """Each recipe: its steps, and its blocks as (language, title, code)."""
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        name = section.partition("\n")[0]
        blocks = [
            (kind, title, textwrap.dedent(code)) for _, kind, title, code in FENCE.findall(section)
        ]
        yield name, len(re.findall(r"^\d+\. ", section, re.MULTILINE)), blocks


def place(tree, path):
    """Return the place of a file of the checkout in the copy, where `package/` is the package
    itself.
    """
    return tree / "lightrainer" / path.removeprefix("package/")


def apply(tree, difference):
    """Change a file as a difference says whose lines without a sign are found in one place."""
    head, *hunks = re.split(r"^@@\n", difference, flags=re.MULTILINE)
    path = place(tree, head.removeprefix("---").strip())
    text = path.read_text(encoding="utf-8")
    for hunk in hunks:
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        assert text.count(old) == 1, f"{path.name} has {text.count(old)} times:\n{old}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package, with all recipes followed."""
    tree = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "package", tree / "lightrainer")
    for folder in ("facade", "lightning_modules", "callbacks"):
        shutil.copytree(
            ROOT / folder,
            tree / "lightrainer" / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for _, _, blocks in recipes():
        for language, title, code in blocks:
            if title:
                assert not place(tree, title).exists()
                place(tree, title).write_text(code, encoding="utf-8")
            elif language == "diff":
                apply(tree, code)
    return tree


def test_recipes_are_short():
    steps = {name: count for name, count, _ in recipes()}
    assert len(steps) == 6
    assert max(steps.values()) <= 5


def test_recipes_can_be_followed(tree):
    """In one process, as each start costs seconds; the last block of each recipe."""
    shown = [blocks[-1] for _, _, blocks in recipes()]
    assert [(language, title) for language, title, _ in shown] == [("python", "")] * 6
    (tree / "tiny_run.py").write_text(TINY_RUN, encoding="utf-8")
    copied = f"import lightrainer\nassert lightrainer.__file__.startswith({str(tree)!r})"
    code = "\n".join([copied, *(block for _, _, block in shown)])
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    pipes = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tree, check=False, **pipes
    )
    assert done.returncode == 0, done.stderr
