"""The code of the page on searches runs as it stands there."""

import re
from pathlib import Path

import lightning
import optuna
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightrainer import LossModule, OptimizerConfig, OptunaPruningCallback, Trainer, TrainingArguments
from lightrainer.facade.search.space import read_space
from lightrainer.lightning_modules import optimize_together

PAGE = Path(__file__).parents[2] / "docs" / "user" / "search.md"


class Model(nn.Module):
    """A linear layer."""

    def __init__(self):
        super().__init__()
        self.network = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.network(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def _quiet():
    before, threads = optuna.logging.get_verbosity(), torch.get_num_threads()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    yield
    optuna.logging.set_verbosity(before)
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:The number of training")
def test_the_code_runs(tmp_path, monkeypatch, capsys):
    """From top to bottom, as later blocks use names of earlier ones."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    points = [{"x": x, "labels": x[:3].argmax()} for x in torch.randn(24, 4)]
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "eval_strategy": "epoch"}
    settings |= {"save_strategy": "no", "num_train_epochs": 2, "per_device_train_batch_size": 4}
    quiet = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False}
    names = {
        "Trainer": Trainer,
        "LossModule": LossModule,
        "OptimizerConfig": OptimizerConfig,
        "OptunaPruningCallback": OptunaPruningCallback,
        "optimize_together": optimize_together,
        "optuna": optuna,
        "lightning": lightning,
        "args": TrainingArguments("out", **settings),
        "make_model": lambda: Model(),
        "train": points[:16],
        "held_out": points[16:],
        "loader": DataLoader(points[:16], batch_size=4),
        "held_out_loader": DataLoader(points[16:], batch_size=4),
        "folder": tmp_path,
        "quiet": quiet,
    }
    for code in blocks("python"):
        exec(code, names)
    said = capsys.readouterr().out
    assert "'PRUNED'" in said or "'COMPLETE'" in said
    assert "learning_rate" in said
    assert (tmp_path / "out" / "search" / "report.html").exists()


def test_the_space_can_be_read(tmp_path):
    (text,) = blocks("yaml")
    (tmp_path / "space.yaml").write_text(text)
    kinds = {one.name: one.kind for one in read_space(tmp_path / "space.yaml")}
    assert kinds == {
        "learning_rate": "float",
        "num_train_epochs": "int",
        "lr_scheduler_type": "categorical",
        "width": "categorical",
    }


def test_the_options_of_the_command_exist():
    from lightrainer.sweep import _parser

    known = _parser().format_help()
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z-]+)", text)) | set(re.findall(r" (--[a-z-]+)", blocks("bash")[0]))
    named -= {"--width", "--epochs", "--nproc"}
    assert len(named) > 6
    assert [option for option in named if option not in known] == []


def test_the_keywords_in_the_table_are_taken():
    """Negative control included: a name that is in no table is refused."""
    import inspect

    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    own = set(inspect.signature(Trainer.hyperparameter_search).parameters)
    optunas = {*inspect.signature(optuna.create_study).parameters}
    optunas |= {*inspect.signature(optuna.study.Study.optimize).parameters}
    ours = {"final_model", "remove_pruned", "resume_trials", "report", "pruning_unit"}
    assert len(named) > 15
    assert set(named) <= own | optunas | ours
