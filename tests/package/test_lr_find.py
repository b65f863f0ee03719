"""`lightrainer lr-find`: a learning rate for an unchanged script, and nothing written."""

import json
import math
import random
import re
from types import SimpleNamespace

import pytest

from helpers.processes.package_commands import NET, command
from lightrainer.tools import lr_find
from lightrainer.tools.lr_find import smooth, steepest_step, variation

SCRIPT = """\
import sys, torch
from torch import nn
from lightrainer import Trainer, TrainingArguments

"""
SCRIPT += NET
SCRIPT += """\
torch.manual_seed(1)
data = [{"x": x, "labels": (x.sum() > 0).long()} for x in torch.randn(64, 4)]
args = TrainingArguments(
    sys.argv[1], use_cpu=True, eval_strategy="epoch", report_to="none", disable_tqdm=True,
    lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": 1e-5}, optim="sgd",
)
trainer = Trainer(Net(), args, train_dataset=data, eval_dataset=data[:5])
trainer.train(resume_from_checkpoint="broken" in sys.argv)
trainer.save_model("saved")
"""


def test_lr_find_suggests_a_rate_and_writes_nothing(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--json", "--min", 1e-4, "--max", 10, "--steps", 30]
    done = command("lr-find", *words, "train.py", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 1e-3 < result["suggestion"] < 10
    assert result["rates"][0] == 1e-4
    first, last = result["losses"][:5], result["losses"][-5:]
    # small rates change nothing, large ones do
    assert max(first) - min(first) < 0.3 < sum(first) / 5 - min(last)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    logged = [float(rate) for rate in re.findall(r"'learning_rate': '?([\d.e+-]+)", done.stderr)]
    assert logged == pytest.approx(result["rates"], rel=1e-3)


def test_bad_input(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = command("lr-find", "--min", "1", "--max", "0.1", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "--min 1 has to be below --max 0.1" in done.stderr


def test_lr_find_suggests_where_the_loss_falls_fastest():
    losses = [1.0] * 20 + [0.9, 0.5, 0.3, 0.29] + [0.28] * 5
    assert steepest_step(losses) == 21
    assert steepest_step([1.0 + step for step in range(20)]) is None
    assert steepest_step([]) is None


def noisy_losses(seed, fall):
    """Losses of 100 steps whose batches scatter by 0.1, and which fall from step 70 to 85."""
    draw = random.Random(seed)
    return [
        1.0 - fall * min(max((step - 70) / 15, 0), 1) + draw.gauss(0, 0.1) for step in range(100)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_suggestion_ignores_the_scatter_between_batches(seed):
    losses = noisy_losses(seed, fall=0.7)
    assert steepest_step(smooth(losses)) is not None, "negative control: scatter falls as well"
    assert variation(losses) == pytest.approx(0.1 / 3, rel=0.5)
    assert 65 <= steepest_step(smooth(losses), variation(losses)) <= 90
    losses = noisy_losses(seed, fall=0.0)
    assert steepest_step(smooth(losses), variation(losses)) is None


def test_smoothing_ends_where_the_loss_explodes():
    assert smooth([1.0] * 10) == pytest.approx([1.0] * 10)
    assert len(smooth([1.0] * 10 + [100.0, 1.0])) == 10
    assert len(smooth([1.0, math.nan, 1.0])) == 1
    assert smooth([math.nan]) == []


def test_smoothing_of_a_negative_loss_ends_where_it_explodes():
    """A ratio to the smallest loss would end it at the first step that counts."""
    falling = [1.0 - 0.1 * step for step in range(40)]
    assert len(smooth(falling)) == 40
    assert len(smooth([*falling, 1e3, 0.0])) == 40
    assert len(smooth([-2.0] * 10)) == 10


def test_lr_find_json_has_no_nan_and_a_rate_for_each_loss(capsys):
    lr_find._print_json([1.0, math.nan], [0.1, 0.2, 0.4], None)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "suggestion": None,
        "rates": [0.1, 0.2],
        "losses": [1.0, None],
    }


@pytest.mark.parametrize(("initial", "rate"), [({}, 0.3), ({"initial_lr": 5e-4}, 3.0)])
def test_lr_find_keeps_the_ratios_of_the_groups(monkeypatch, initial, rate):
    """A group without a first rate, which only schedules of torch store, has the rate itself."""
    group = {"lr": 1.0, **initial}

    class TrainerOfOneStep:
        def add_callback(self, callback):
            self.callback = callback

        def train(self):
            args = SimpleNamespace(learning_rate=5e-5)
            state = SimpleNamespace(global_step=0)
            optimizer = SimpleNamespace(param_groups=[group])
            self.callback.on_pre_optimizer_step(args, state, None, optimizer=optimizer)

    monkeypatch.setattr(lr_find, "write_result", lambda *_: None)
    lr_find.change(TrainerOfOneStep, {"rates": [0.3]})
    with pytest.raises(SystemExit):
        TrainerOfOneStep().train()
    assert group["lr"] == pytest.approx(rate)
