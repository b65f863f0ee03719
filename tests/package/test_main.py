"""The command line of the package."""

import contextlib
import os
import subprocess
import sys

import pytest
import torch

import lightrainer
from lightrainer.__main__ import main
from lightrainer.facade.strategies.plan import translate


def run(*words, cwd):
    command = [sys.executable, "-m", "lightrainer", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing is ever written: neither into the working directory nor beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_main_plan_as_a_program(tmp_path):
    done = run(
        "plan",
        "--output_dir",
        "not/there",
        "--learning-rate",
        "1e-3",
        "--use_cpu",
        cwd=tmp_path / "here",
    )
    assert (done.returncode, done.stderr) == (0, "")
    args = lightrainer.TrainingArguments("not/there", learning_rate=1e-3, use_cpu=True)
    assert (
        done.stdout
        == f"{translate(args)}\n"
        != f"{translate(lightrainer.TrainingArguments(use_cpu=True))}\n"
    )


def test_main_plan_for_a_gpu_elsewhere(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["plan", "--bf16"]) == 0
    printed = capsys.readouterr()
    assert "bf16-mixed" in printed.out
    assert "It cannot run on this machine: bf16=True, but no GPU of this machine" in printed.err
    with pytest.raises(ValueError, match="bf16=True, but no GPU of this machine"):
        lightrainer.TrainingArguments(bf16=True)


@pytest.mark.parametrize(
    "words", [["plan"], ["estimate", "--model", "1B", "--compare"], ["--help"]]
)
def test_main_closed_pipe_ends_quietly(words, monkeypatch, capfd):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with contextlib.suppress(SystemExit):
            main(words)
        closed.flush()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("command", ["launch", "sweep", "compare", "lr-find"])
def test_main_examples_are_one_shell_command(command, capsys):
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    example = capsys.readouterr().out.partition("Example: ")[2].partition("\n\n")[0]
    lines = example.strip().splitlines()
    assert lines[0].startswith(f"lightrainer {command} ")
    assert all(line.endswith("\\") for line in lines[:-1])


def test_main_broken_connection_is_an_error(monkeypatch):
    """Negative control: another pipe than that of the output is broken."""
    monkeypatch.setattr(lightrainer.__main__, "_run", broken_connection)
    with pytest.raises(BrokenPipeError, match="of the database"):
        main(["plan"])


def broken_connection(argv):
    raise BrokenPipeError("of the database")


WORDS = [
    (["plan", "--learning_rte", "1"], "Did you mean 'learning_rate'"),
    (
        ["plan", "--max_steps", "many"],
        "argument --max_steps/--max-steps: invalid int value: 'many'",
    ),
    (["plan", "--fsdp_config", "no.json"], "no.json"),
    (["plann"], "'plann' is neither a command nor a script. Did you mean 'plan'? Commands: run, "),
    (["evalute", "x.py"], "Did you mean 'evaluate'?"),
    (["lr_find", "x.py"], "Did you mean 'lr-find'?"),
    (["trian"], "'trian' is neither a command nor a script. Commands: run, launch, "),
    ([], "the following arguments are required: COMMAND"),
]


@pytest.mark.parametrize(("words", "message"), WORDS)
def test_problems_end_with_status_2_and_the_message(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert message in printed.err
    assert "[options]" in printed.err or "COMMAND" in printed.err
    assert printed.out == ""
    assert len(printed.err) < 1500
