"""A script run by the runner is a script run by Python: every word of it is compared with plain
Python.
"""

import signal
import sys

import pytest

from helpers.processes.plain_pythons import run
from lightrainer.__main__ import main

SCRIPT = """
import os, pickle, signal, sys, traceback

class Mine:
    pass

def inner(word):
    if word == "raise":
        raise ValueError("of the script")
    if word == "exit":
        sys.exit(7)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)

main = sys.modules["__main__"]
print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), main.__spec__, main.__dict__ is globals())
print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, sys.flags.optimize, sys.stdin.read())
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
sys.stdout.flush()
inner(sys.argv[1])
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "in a folder").mkdir()
    path = tmp_path / "in a folder" / "some script.py"
    path.write_text(SCRIPT)
    return path


def both(tmp_path, *words, options=(), input="in\n"):
    commands = [*options, *words], [*options, "-m", "lightrainer", *words]
    return [run(sys.executable, *command, cwd=tmp_path, input=input) for command in commands]


ENDINGS = {
    "nothing": 0,
    "raise": 1,
    "exit": 7,
    "kill": -signal.SIGKILL,
    "interrupt": -signal.SIGINT,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_runner_is_invisible_to_the_script(script, tmp_path, ending):
    """Output, errors with their traceback, exit code or signal, `__main__`, arguments, folder
    and standard input.
    """
    words = [script.relative_to(tmp_path), ending, "--verbose", "-m"]
    plain, served = both(tmp_path, *words, options=["-O", "-X", "utf8"])
    assert (served.returncode, served.stdout, served.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )
    assert plain.returncode == ENDINGS[ending]
    assert "some script.py" in plain.stdout


def test_runner_keeps_the_options_of_python(tmp_path):
    code = "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, sys.stdout.write_through)"
    options = ["-u", "-B", "-W", "ignore", "-X", "dev"]
    plain, served = both(tmp_path, "-c", code, options=options)
    assert served.stdout == plain.stdout
    assert "dev_mode=True" in plain.stdout
    assert plain.stdout.endswith("True\n")


WORDS = [
    ["-mjson.tool", "not there.json"],
    ["-c", "import sys; print(sys.argv, __name__, sys.path[0]); 1 / 0", "-x"],
    ["-", "a", "b"],
    ["not there.py"],
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words[:2]))
def test_modules_code_and_the_standard_input(words, tmp_path):
    plain, served = both(tmp_path, *words, input="import sys; print(sys.argv, __name__)")
    assert (served.returncode, served.stdout, served.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


def test_runner_console_script_and_command_words(tmp_path):
    """`lightrainer run plan` runs a script called plan, `lightrainer plan` is the command."""
    (tmp_path / "plan").write_text("import sys; print('the script', sys.argv, sys.flags.optimize)")
    (tmp_path / "other").write_text("import sys; print('the other', sys.argv)")
    console = "import sys; from lightrainer.__main__ import main; sys.exit(main())"
    program = tmp_path / "lightrainer"  # as pip makes it
    program.write_text(f"#!{sys.executable}\n{console}\n")
    program.chmod(0o755)
    done = run(program, "run", "plan", "x", cwd=tmp_path)
    assert done.stdout == "the script ['plan', 'x'] 0\n", done.stderr
    assert run(
        sys.executable, "-O", "-m", "lightrainer", "run", "plan", cwd=tmp_path
    ).stdout.endswith(" 1\n")
    other = run(sys.executable, "-m", "lightrainer", "other", "run", cwd=tmp_path)
    assert other.stdout == "the other ['other', 'run']\n"
    assert (
        "--gradient_accumulation"
        in run(sys.executable, "-m", "lightrainer", "plan", "--help", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize(
    ("words", "reason"), [(["run"], "no script"), (["run", "--dry-rn", "x"], "--dry-rn")]
)
def test_runner_wrong_command_line(words, reason, capsys):
    assert main(words) == 2
    assert reason in capsys.readouterr().err


def test_runner_refuses_a_python_that_ignores_its_environment(tmp_path):
    done = run(sys.executable, "-E", "-m", "lightrainer", "x.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "-E, -I or -S" in done.stderr
    assert "lightrainer.install()" in done.stderr


DRY = """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        print("A STEP")
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 4
args = TrainingArguments("out", use_cpu=True, max_steps=2, learning_rate=0.125, report_to="none", disable_tqdm=True)
trainer = Trainer(Model(), args, train_dataset=data, eval_dataset=data)
import os, sys
getattr(trainer, sys.argv[1])()
print("THE END")
if len(sys.argv) > 2:
    os.environ["LIGHTRAINER_DRY_RUN"] = "1"
    trainer.train()
    print("NOT REACHED")
"""


def test_runner_dry_run_prints_the_plan(without_library, tmp_path):
    (tmp_path / "script.py").write_text(DRY)
    done = run(
        without_library, "-m", "lightrainer", "--dry-run", "script.py", "evaluate", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "learning_rate=0.125" in done.stdout, done.stdout
    assert "A STEP" not in done.stdout
    assert "THE END" not in done.stdout


def test_runner_under_torchrun(without_library, tmp_path):
    """Each worker is served, and each is what torchrun started: ranks, one exit code, a plan
    from one of them.
    """
    (tmp_path / "script.py").write_text(DRY)
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        "lightrainer",
    ]
    done = run(without_library, *launch, "script.py", "train", "then as in a dry run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("THE END") == 2
    assert done.stdout.count("A STEP") == 4
    assert done.stdout.count("learning_rate=0.125") == 1
    assert "NOT REACHED" not in done.stdout
