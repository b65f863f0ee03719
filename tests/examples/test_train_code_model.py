"""The demo runs as its reader will run it, only shorter, and its parts do what their docstrings say."""

import math
import random
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ["--max-steps=4", "--eval-steps=2", "--batch-size=2", "--megabytes=0.1"]


@pytest.fixture
def examples(monkeypatch):
    """Make the folder of the examples importable, as Python does for a script in it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in {"train_code_model", "code_model"}]:
        del sys.modules[name]


@pytest.fixture
def demo(examples):
    import train_code_model

    train_code_model.HELD_OUT_BLOCKS = 8  # what all evaluations together take, with more of them, is most of the time
    random_state = torch.get_rng_state(), random.getstate()
    yield train_code_model.main
    torch.set_rng_state(random_state[0])
    random.setstate(random_state[1])


def test_stopped_and_resumed_it_leaves_a_model_a_picture_and_logs(demo, tmp_path, capsys):
    short = [*SHORT, f"--output-dir={tmp_path}"]
    demo([*short, "--stop-after=2"])
    assert "stopped after 2 of 4 steps" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]

    demo([*short, "--resume", "--target-ratio=1"])
    said = capsys.readouterr().out
    assert "after 4 steps" in said
    assert "def read_config(path):" in said
    assert {"checkpoint-4", "model.safetensors", "tokenizer.json", "loss_curve.png"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_a_model_that_learnt_too_little_is_an_error(demo, tmp_path):
    with pytest.raises(SystemExit, match=r"less than 0\.1 is asked for"):
        demo([*SHORT, f"--output-dir={tmp_path}", "--max-steps=1"])


def test_checkpoints_of_an_earlier_run_are_not_mixed_with_a_new_one(demo, tmp_path, capsys):
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(SystemExit):
        demo([f"--output-dir={tmp_path}"])
    assert "add --resume" in capsys.readouterr().err


@pytest.mark.usefixtures("examples")
def test_no_file_is_both_learnt_from_and_held_out_and_the_choice_is_always_the_same():
    from code_model import python_sources, split_by_file

    files = python_sources(300_000)
    learnt, held_out = split_by_file(files)
    assert files == python_sources(300_000)
    assert held_out
    assert sorted(learnt + held_out) == sorted(files)
    assert not set(learnt) & set(held_out)


@pytest.mark.usefixtures("examples")
def test_blocks_hold_the_text_of_the_files(tmp_path):
    from code_model import END_OF_FILE, build_tokenizer, to_blocks

    file = tmp_path / "a.py"
    file.write_text("def f(x):\n    return x  # \N{GREEK SMALL LETTER PI}\n" * 20, encoding="utf-8")
    tokenizer = build_tokenizer([file], vocab_size=300)
    rows = to_blocks([file], tokenizer, block_size=8)
    text = tokenizer.decode([token for row in rows["input_ids"] for token in row], skip_special_tokens=False)
    whole = file.read_text(encoding="utf-8") + END_OF_FILE
    assert whole.startswith(text)
    assert len(text) > len(whole) // 2
    assert all(len(row) == 8 for row in rows["input_ids"])


@pytest.mark.usefixtures("examples")
def test_an_empty_library_is_an_error_that_names_the_folder(tmp_path):
    from code_model import python_sources

    with pytest.raises(FileNotFoundError, match="Found 0 Python files under"):
        python_sources(300_000, root=tmp_path)


@pytest.mark.usefixtures("examples")
def test_the_model_sees_no_later_token_and_starts_out_knowing_nothing():
    from code_model import CodeGPT

    torch.manual_seed(0)
    model = CodeGPT(vocab_size=500, block_size=16).eval()
    tokens = torch.randint(500, (4, 16))
    changed = tokens.clone()
    changed[:, 9:] = 7
    with torch.no_grad():
        outputs, outputs_changed = model(tokens, labels=tokens), model(changed)
    torch.testing.assert_close(outputs["logits"][:, :9], outputs_changed["logits"][:, :9])
    assert not torch.equal(outputs["logits"][:, 9:], outputs_changed["logits"][:, 9:])
    assert outputs["loss"].item() == pytest.approx(math.log(500), rel=0.05)
