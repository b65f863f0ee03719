"""The code of the page for Lightning users runs as it stands there, one block after the other."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

PAGE = Path(__file__).parents[2] / "docs" / "user" / "lightning.md"
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:Total length of `list` across ranks is zero",
)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


class Model(nn.Module):
    def __init__(self, with_loss=True):
        super().__init__()
        self.layer, self.with_loss = nn.Linear(4, 3), with_loss

    def forward(self, x, labels=None):
        logits = self.layer(x)
        if not self.with_loss:
            return logits
        return {"loss": None if labels is None else functional.cross_entropy(logits, labels), "logits": logits}


class Tokens(nn.Module):
    """A table, which echoes where it generates."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 7)
        self.config = type("Config", (), {"pad_token_id": 0})()

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, labels=None):
        return self.table(input_ids)

    def generate(self, input_ids, max_new_tokens):
        return input_ids[:, :max_new_tokens]


class Tokenizer:
    def batch_decode(self, ids):
        return [" ".join(f"word{token}" for token in row) for row in ids]


def points(count, seed):
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": x, "labels": x[:3].argmax()} for x in rows]


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program"])
    # Lightning 2.6 uses names that jsonargparse 4.53 is about to rename (2026).
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # the CLI sets them, and they are to go again
        monkeypatch.setenv(name, "0")
    package = tmp_path / "my_package.py"
    package.write_text(
        "import torch\nfrom torch import nn\n"
        "class Letters(nn.Module):\n"
        "    def __init__(self, size):\n        super().__init__()\n        self.table = nn.Embedding(7, size)\n"
        "        self.head = nn.Linear(size, 7)\n"
        "    def forward(self, input_ids):\n        return self.head(self.table(input_ids))\n"
        "def make_training_data():\n    row = torch.arange(6)\n    return [{'input_ids': row, 'labels': row}] * 9\n"
        "make_held_out_data = make_training_data\n"
        "def pad(samples):\n    return torch.utils.data.default_collate(samples)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "page.yaml").write_text(blocks("yaml")[0])
    torch.manual_seed(0)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return {
        "torch": torch,
        "quiet": {**quiet, "enable_checkpointing": False, "default_root_dir": tmp_path},
        "model": Model(),
        "logits_model": Model(with_loss=False),
        "make_model": Model,
        "token_model": Tokens(),
        "seq2seq_model": Tokens(),
        "tokenizer": Tokenizer(),
        "train_dataset": points(40, 1),
        "val_dataset": points(10, 2),
        "other_dataset": points(10, 3),
        "arguments": ["--config", "page.yaml"],
    }


def test_the_code_runs_and_does_what_is_said(names):
    for code in blocks("python"):
        exec(code, names)
    metrics = names["trainer"].callback_metrics
    assert {"val_near_loss", "val_far_loss", "val_near_accuracy"} <= set(metrics)
    assert torch.equal(names["again"].model.layer.weight, names["module"].model.layer.weight)
    assert names["data"].batch_size == 8
    assert isinstance(names["described"].model, nn.Linear)
    cli = names["cli"]
    assert (type(cli.model).__name__, cli.model.learning_rate) == ("CausalLMModule", 0.02)
    validate_the_tasks(names)


def validate_the_tasks(names):
    """What the comments beside them say that they log."""
    import lightning

    from lightrainer import DataModule, default_data_collator

    sentences = [{"input_ids": row, "labels": row} for row in torch.randint(1, 7, (6, 5))]
    expected = {"classifier": "val_accuracy", "language_model": "val_perplexity", "translator": "val_bleu"}
    for name, metric in expected.items():
        data = names["val_dataset"] if name == "classifier" else sentences
        module = DataModule(None, data, collate_fn=default_data_collator)
        (found,) = lightning.Trainer(**names["quiet"]).validate(names[name], module, verbose=False)
        assert set(found) == {"val_loss", metric}
        if name == "translator":
            assert found[metric] == 1, "an echo"


def test_the_first_block_logs_what_its_comment_says(names):
    code = next(code for code in blocks("python") if "sorted(trainer.callback_metrics)" in code)
    exec(code, names)
    said = re.search(r"# (train_accuracy.*)", code).group(1).split(", ")
    assert sorted(names["trainer"].callback_metrics) == said


def test_the_table_names_public_classes():
    import lightrainer

    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == 6
    assert set(named) <= set(lightrainer.__all__)
