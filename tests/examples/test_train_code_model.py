"""The demo runs as its reader will run it, only shorter, and its parts do what their docstrings
say.
"""

import random
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ["--max-steps=4", "--eval-steps=2", "--batch-size=2", "--megabytes=0.1"]


@pytest.fixture
def demo(monkeypatch):
    """Have the folder of the examples importable, as Python does for a script in it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import train_code_model

    # what all evaluations together take, with more of them, is most of the time
    train_code_model.HELD_OUT_BLOCKS = 8
    random_state = torch.get_rng_state(), random.getstate()
    yield train_code_model.main
    torch.set_rng_state(random_state[0])
    random.setstate(random_state[1])
    for name in [
        name for name in sys.modules if name.split(".")[0] in {"train_code_model", "code_model"}
    ]:
        del sys.modules[name]


def test_stopped_and_resumed_it_leaves_a_model_a_picture_and_logs(demo, tmp_path, capsys):
    short = [*SHORT, f"--output-dir={tmp_path}"]
    demo([*short, "--stop-after=2"])
    assert "stopped after 2 of 4 steps" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]

    demo([*short, "--resume", "--target-ratio=1"])
    output = capsys.readouterr().out
    assert "after 4 steps" in output
    assert "def read_config(path):" in output
    left = {path.name for path in tmp_path.iterdir()}
    assert {"checkpoint-4", "model.safetensors", "tokenizer.json", "report.html"} <= left
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_checkpoints_of_an_earlier_run_are_not_mixed_with_a_new_one(demo, tmp_path, capsys):
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(SystemExit):
        demo([f"--output-dir={tmp_path}"])
    assert "add --resume" in capsys.readouterr().err
