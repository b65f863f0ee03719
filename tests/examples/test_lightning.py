"""The examples for Lightning users run as their reader will run them, and come to what they say."""

import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples" / "lightning"
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:The dirpath has changed",
)


@pytest.fixture
def example(monkeypatch, tmp_path):
    """`example(name)`: the module, imported as Python does for a script in its folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program"])
    # Lightning 2.6 uses names that jsonargparse 4.53 is about to rename (2026).
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    # Lightning sets them, and they are to go again
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
    random_state = torch.get_rng_state()
    yield lambda name: __import__(name)
    torch.set_rng_state(random_state)
    for name in ("module", "datamodule", "callbacks", "cli"):
        sys.modules.pop(name, None)


def test_lightning_example_module_learns(example):
    """Far better than guessing among 28 letters."""
    assert example("module").main() < 7


def test_data_module_resumes_in_place(example, capsys):
    assert example("datamodule").main()
    assert capsys.readouterr().out.count("val_long_perplexity") == 2


def test_callbacks_of_both_kinds(example):
    ends = example("callbacks").main()
    assert 1 < len(ends) < 20, "it was stopped early"
    assert ends == [23 * (epoch + 1) for epoch in range(len(ends))]


def test_lightning_example_trains_from_a_file(example, tmp_path):
    cli = example("cli").main(
        ["fit", "--config", str(EXAMPLES / "config.yaml"), "--data.batch_size=4"]
    )
    assert type(cli.model.model).__name__ == "Letters"
    assert cli.trainer.global_step == 3 * 13
    assert cli.model.learning_rate == 0.02
    assert cli.trainer.callback_metrics["val_long_perplexity"] < 15
    assert list(tmp_path.iterdir()) == []
