"""The bar of rich."""

import io
import re
import time

import pytest
from rich.console import Console

from helpers.callbacks.small_training import make_trainer, trained
from lightrainer import TrainerControl, TrainerState, TrainingArguments
from lightrainer.callbacks import ProgressCallback, RichProgressCallback, TrainerCallback

EVALUATED = {"eval_strategy": "steps", "eval_steps": 4, "disable_tqdm": False}

EVALUATING = r"evaluating\s.*[12]/2"


def screen():
    return Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)


def text_of(console):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


class Slow(TrainerCallback):
    """Gives the bar of an evaluation the time to be drawn, which a thread does now and then."""

    def __init__(self, console):
        self.console = console

    def on_prediction_step(self, args, state, control, **kwargs):
        end = time.monotonic() + 60
        while not re.search(EVALUATING, text_of(self.console)) and time.monotonic() < end:
            time.sleep(0.01)


def test_rich_progress_shows_steps_times_losses_and_speed(tmp_path):
    console = screen()
    trainer = trained(tmp_path, [RichProgressCallback(console=console), Slow(console)], **EVALUATED)
    shown = text_of(console)
    last = shown[shown.rindex("training") :]
    assert re.search(r"training\s.*16/16 0:00:\d\d < 0:00:00", last)
    for label in ("epoch=2", "loss=", "lr=", "samples/s=", "eval_loss="):
        assert label in last, label
    assert re.search(EVALUATING, shown)
    written = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    for entry in written:
        assert f"{next(iter(entry.values())):.4g}" in shown
    assert "evaluating" not in last  # the second bar goes when it is done


def test_rich_bar_replaces_the_bar_of_tqdm(tmp_path):
    """Given at the construction or added later; and what is removed by the name of that one is
    it.
    """
    bars = lambda of: [
        type(one) for one in of.callback_handler.callbacks if isinstance(one, ProgressCallback)
    ]
    at_once = make_trainer(tmp_path, [RichProgressCallback], disable_tqdm=False)
    later = make_trainer(tmp_path, disable_tqdm=False)
    assert bars(later) == [ProgressCallback]
    later.add_callback(RichProgressCallback)
    for trainer in (at_once, later):
        assert bars(trainer) == [RichProgressCallback]
        trainer.remove_callback(ProgressCallback)
        assert bars(trainer) == []


@pytest.mark.parametrize("first", [True, False])
def test_rich_bar_is_quiet_where_bars_are_not_wanted_and_in_other_processes(
    tmp_path, capsys, first
):
    """Lines are printed instead."""
    console = screen()
    trainer = make_trainer(
        tmp_path, [RichProgressCallback(console=console)], **{**EVALUATED, "disable_tqdm": first}
    )
    trainer.is_world_process_zero = lambda: first
    trainer.train()
    trainer.evaluate()
    assert console.file.getvalue() == ""
    assert ("'loss'" in capsys.readouterr().out) is first


def test_strange_logs_are_no_markup(tmp_path):
    console = screen()
    trainer = make_trainer(tmp_path, [RichProgressCallback(console=console)], disable_tqdm=False)
    bar = trainer.callback_handler.callbacks[-1]
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.log({"loss": 1.0, "note": "[bold]so[/bold] [/nonsense]"})
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
    assert "[bold]so[/bold] [/nonsense]" in text_of(console)
    assert bar.training_bar is None


@pytest.mark.parametrize("total", [16, 100_000])
def test_rich_narrow_terminal_keeps_bar_steps_and_remaining_time(tmp_path, total):
    """In 80 columns nothing is cut off and nothing is wrapped; what stands beside the bar is
    left out.
    """
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    callback = RichProgressCallback(console=console)
    args = TrainingArguments(str(tmp_path), report_to="none")
    callback.on_train_begin(args, TrainerState(max_steps=total), TrainerControl())
    bar = callback.training_bar
    bar.update(3)
    beside = {
        "epoch": "0.25",
        "loss": "1.235",
        "lr": "5e-05",
        "samples/s": "1234",
        "eval_loss": "1.123",
    }
    bar.set_postfix(beside)
    bar.close()
    last = [line for line in text_of(console).splitlines() if "training" in line][-1].split("\r")[
        -1
    ]
    assert re.search(rf"training .* +3/{total} 0:00:\d\d < [-\d:]+ +.*loss=1\.235", last), last
    assert "…" not in last
    assert "samples/s" not in last
