"""The table in a notebook: what is displayed, and once for real, in a kernel of Jupyter."""

import re
from types import SimpleNamespace

import IPython
import nbclient
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput

from helpers import TESTS
from helpers.callbacks.small_training import make_trainer, train_small
from lightrainer.callbacks import (
    NotebookProgressCallback,
    ProgressCallback,
    TrainerControl,
    TrainerState,
    default_progress_callback,
)

CONTROL = TrainerControl()


class Publisher:
    """Takes the place of the one that sends outputs to the notebook."""

    def __init__(self):
        self.sent = []
        self.is_publishing = False

    def publish(self, data, metadata=None, *, transient=None, update=False, **kwargs):
        RichOutput(data, metadata)  # what a notebook would do
        self.sent.append((transient["display_id"], update, data["text/html"]))


@pytest.fixture
def notebook(monkeypatch):
    shell = InteractiveShell.instance()
    publisher = Publisher()
    monkeypatch.setattr(shell, "display_pub", publisher)
    yield publisher
    InteractiveShell.clear_instance()


def rows(page):
    """The cells of the table, row by row."""
    return [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        for row in re.findall(r"<tr ?>(.*?)</tr>", page)
    ]


def test_notebook_table_has_a_row_per_log_without_evaluations(tmp_path, notebook):
    trainer = train_small(tmp_path, [NotebookProgressCallback()])
    assert len({display for display, _, _ in notebook.sent}) == 1
    assert [update for _, update, _ in notebook.sent] == [False] + [True] * (len(notebook.sent) - 1)
    page = notebook.sent[-1][2]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    expected = [[str(2 * index), f"{loss:.6f}"] for index, loss in enumerate(losses, 1)]
    assert rows(page) == [["Step", "Training Loss"], *expected]
    assert re.search(r'<progress value="16" max="16"', page)
    assert re.search(
        r"100% 16/16 \[\d\d:\d\d&lt;00:00, [\d.]+it/s, epoch=2, loss=[\d.]+, lr=[\d.e-]+\]",
        page,
    )


def test_notebook_table_has_a_row_per_evaluation(tmp_path, notebook):
    options = {"eval_strategy": "epoch", "logging_steps": 3}
    trainer = make_trainer(tmp_path, [NotebookProgressCallback()], **options)
    trainer.compute_metrics = lambda prediction: {
        "mean_logit": float(prediction.predictions.mean()),
        "<b>": 1.0,
    }
    trainer.train()
    history = trainer.state.log_history
    page = notebook.sent[-1][2]
    head, first, second = rows(page)
    assert head == ["Epoch", "Training Loss", "Validation Loss", "Mean Logit", "&lt;B&gt;"]
    evaluations = [entry for entry in history if "eval_loss" in entry]
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    assert first[:3] == ["1", f"{losses[6]:.6f}", f"{evaluations[0]['eval_loss']:.6f}"]
    assert second[:3] == ["2", f"{losses[15]:.6f}", f"{evaluations[1]['eval_loss']:.6f}"]
    # the bar of the evaluation, below
    assert any(page.count("<progress") == 2 for _, _, page in notebook.sent)
    assert page.count("<progress") == 1


def test_notebook_later_evaluation_has_a_separate_table(tmp_path, notebook):
    options = {"eval_strategy": "steps", "eval_steps": 8}
    trainer = train_small(tmp_path, [NotebookProgressCallback()], **options)
    of_training = notebook.sent[-1]
    trainer.evaluate()
    assert notebook.sent[-1][0] != of_training[0]
    head, only_row = rows(notebook.sent[-1][2])
    assert (head[0], only_row[0]) == ("Step", "16")


def test_notebook_evaluation_shows_its_table_once(tmp_path, notebook):
    make_trainer(tmp_path, [NotebookProgressCallback()]).evaluate()
    assert len({display for display, _, _ in notebook.sent}) == 1
    assert notebook.sent[-1][2].count("Validation Loss") == 1


def test_notebook_prediction_shows_no_training_table(tmp_path, notebook):
    trainer = train_small(tmp_path, [NotebookProgressCallback()])
    assert "<table" in notebook.sent[-1][2]
    notebook.sent.clear()
    trainer.predict(trainer.train_dataset)
    assert notebook.sent
    for _, _, page in notebook.sent:
        assert "<progress" in page
        assert "<table" not in page


def test_notebook_several_sets_share_a_row(notebook):
    args = SimpleNamespace(eval_strategy="steps", disable_tqdm=False)
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=4, global_step=2)
    callback.on_train_begin(args, state, CONTROL)
    callback.on_evaluate(
        args, state, CONTROL, metrics={"eval_a_loss": 1.0, "eval_a_runtime": 3.0, "epoch": 1}
    )
    callback.on_evaluate(args, state, CONTROL, metrics={"eval_b_loss": 2.0})
    callback.on_train_end(args, state, CONTROL)
    assert rows(notebook.sent[-1][2]) == [
        ["Step", "Training Loss", "A Loss", "B Loss"],
        ["2", "No log", "1.000000", "2.000000"],
    ]


def test_notebook_table_is_hidden_on_other_ranks(tmp_path, notebook):
    trainer = make_trainer(tmp_path, [NotebookProgressCallback()], eval_strategy="epoch")
    trainer.is_world_process_zero = lambda: False
    trainer.train()
    assert notebook.sent == []


def test_notebook_table_is_default_only_in_a_notebook_kernel(tmp_path, monkeypatch):
    def bars():
        callbacks = make_trainer(tmp_path, disable_tqdm=False).callback_handler.callbacks
        return [type(callback) for callback in callbacks if isinstance(callback, ProgressCallback)]

    assert bars() == [ProgressCallback]
    shell = SimpleNamespace(config={})  # IPython in a terminal
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert bars() == [ProgressCallback]
    shell.config = {"IPKernelApp": {}}
    assert bars() == [NotebookProgressCallback] == [default_progress_callback()]


def test_notebook_kernel_shows_the_table(tmp_path):
    """Nothing but a Trainer in a cell: it finds by itself that it is in a notebook."""
    cell = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from helpers.callbacks.small_training import make_trainer
trainer = make_trainer({str(tmp_path)!r}, disable_tqdm=False, eval_strategy="epoch")
trainer.train()
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources={}).execute()
    outputs = notebook.cells[0].outputs
    tables = [
        output.data["text/html"] for output in outputs if output.output_type == "display_data"
    ]
    assert len(tables) == 1  # redrawn in place
    assert [row[0] for row in rows(tables[0])] == ["Epoch", "1", "2"]
    assert 'value="16" max="16"' in tables[0]
    # no bar of tqdm, and no lines
    assert not [output for output in outputs if output.output_type == "stream"]
