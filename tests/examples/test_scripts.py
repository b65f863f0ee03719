"""Complete scripts of the usual kind, unmodified: plain Python with the reference, and
`python -m lightrainer`.

Each is stopped after three steps and restarted for six: it finds its checkpoint and resumes. What
it leaves on the disk is the same to the last bit, except what a clock measured (`CLOCK_ENDINGS`)
and `train_loss` after a resumption, which the reference 5.3.0 divides by all steps
(`tests/helpers/parity/repairs.py`); as six is twice three, doubling it gives exactly the right one.
"""

import ast
import csv
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from helpers import HELPERS
from helpers.comparing.bit_differences import differences, without_clock
from helpers.processes.starting import forked_python

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "examples" / "scripts"
OURS, REFERENCE = ("-m", "lightrainer"), ()
SECONDS = 300
LOG = "log.txt"

COMMON = (
    "--output_dir out --do_train --do_eval --eval_strategy steps --eval_steps 3 --save_steps 3 "
    "--logging_steps 1"
)
COMMON += " --learning_rate 5e-3 --report_to none --use_cpu"
WORDS = {
    "text_classification": (
        "--do_predict --train_file train.csv --validation_file held_out.csv --test_file "
        "held_out.csv --load_best_model_at_end --metric_for_best_model accuracy --patience 9 "
        "--save_total_limit 2 --warmup_steps 2 --lr_scheduler_type cosine"
    ),
    "causal_lm": (
        "--train_file text.txt --validation_split_percentage 20 --weight_decay 0.1 --optim "
        "adafactor"
    ),
    "masked_lm": "--mlm_probability 0.3 --max_grad_norm 0.5 --lr_scheduler_type constant",
    "token_classification": (
        "--do_predict --return_entity_level_metrics --per_device_train_batch_size 5"
    ),
    "question_answering": (
        "--do_predict --pad_to_max_length False --per_device_eval_batch_size 6 --eval_on_start"
    ),
    "translation": (
        "--do_predict --predict_with_generate --num_beams 2 --label_smoothing_factor 0.1"
    ),
    "multiple_choice": (
        "--include_num_input_tokens_seen --max_eval_samples 13 --lr_scheduler_type constant"
    ),
    "image_classification": (
        "--remove_unused_columns False --lr_scheduler_type constant_with_warmup"
    ),
    "own_model": "--do_predict --table_learning_rate 0.02",
}
# Data or collator draw random numbers. When resumed, the reference draws other numbers than in its
# own uninterrupted training, and ours draws the same (docs/user/checkpoints.md).
DRAWING = ("masked_lm", "image_classification")
# What a script writes itself.
WRITTEN = {
    "text_classification": ["predict_results.txt"],
    "token_classification": ["predictions.txt", "predict_results.json"],
    "question_answering": [
        "eval_predictions.json",
        "predict_predictions.json",
        "predict_results.json",
    ],
    "translation": ["generated_predictions.txt", "predict_results.json"],
    "own_model": ["guesses.txt", "losses.txt", "predict_results.json"],
}
RESULTS = ["all_results.json", "train_results.json", "eval_results.json"]
# What ours has besides: see docs/user/checkpoints.md.
MORE_FILES = {"_manifest.json", "data_state_0.pth", "loss_curve.svg"}


def environment(home: Path) -> dict[str, str]:
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LIGHTRAINER", "PYTHONPATH"))
    }
    hub = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**variables, **hub, "OMP_NUM_THREADS": "1"}


def said_by(commands: list[list[object]], folders: list[Path], *, fails: bool = False) -> list[str]:
    """Run commands side by side, each in its folder; returns what they have printed."""
    logs, running = [folder / LOG for folder in folders], []
    try:
        for command, folder, log in zip(commands, folders, logs, strict=True):
            with log.open("w") as stream:
                settings = {"cwd": folder, "env": environment(folder / "home"), "stdout": stream}
                running.append(
                    subprocess.Popen([*map(str, command)], stderr=subprocess.STDOUT, **settings)
                )
        codes = [process.wait(SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    outputs = [log.read_text() for log in logs]
    for code, text in zip(codes, outputs, strict=True):
        assert (code != 0) is fails, text[-6000:]
    return outputs


def put_data_into(folder: Path) -> None:
    """The files that some of the scripts read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train.csv", 40), ("held_out.csv", 15)):
        with (folder / name).open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["text", "label"])
            kinds = ["sour", "sweet", "salty"]
            rows.writerows(
                [f"number {n * n} tastes {kinds[n % 3]}, as {n} does", kinds[n % 3]]
                for n in range(count)
            )
    song = (f"{n} bottles hang there, and {n - 1} are left.\n" for n in range(60, 0, -1))
    (folder / "text.txt").write_text("".join(song))


def jobs(folder: Path) -> list[tuple[str, str, list[str]]]:
    """Each script, and again; some without an interruption; one for a model that was saved."""
    job_list = []
    for name, special in WORDS.items():
        job_folder = folder / name
        put_data_into(job_folder)
        words = [*COMMON.split(), *special.split()]
        job_list += [(job_folder, name, [*words, "--max_steps", steps]) for steps in ("3", "6")]
        if name in DRAWING:
            (folder / "whole" / name).mkdir(parents=True)
            job_list.append((folder / "whole" / name, name, [*words, "--max_steps", "6"]))
    saved = (
        "--model_name_or_path out --output_dir saved --do_eval --do_predict --validation_file "
        "held_out.csv"
    )
    job_list.append(
        (
            folder / "text_classification",
            "text_classification",
            f"{saved} --test_file held_out.csv".split(),
        )
    )
    return [
        (str(job_folder), str(SCRIPTS / f"{name}.py"), words)
        for job_folder, name, words in job_list
    ]


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """The folders of the reference and of ours, in which all scripts have run."""
    folders = {
        "transformers": tmp_path_factory.mktemp("reference"),
        "lightrainer": tmp_path_factory.mktemp("ours"),
    }
    todo = {side: jobs(folder) for side, folder in folders.items()}
    for side, folder in folders.items():
        (folder / "jobs.json").write_text(json.dumps(todo[side]))
    commands = [
        [forked_python(), *runner, HELPERS / "scripts" / "side_script.py", "jobs.json"]
        for runner in (REFERENCE, OURS)
    ]
    for side, text in zip(folders, said_by(commands, list(folders.values())), strict=True):
        result = json.loads(text.splitlines()[-1])
        assert result["trainer"] == side
        failed = [job for job, code in zip(todo[side], result["codes"], strict=True) if code]
        assert not failed, Path(failed[0][0], LOG).read_text()[-6000:]
    return tuple(folders.values())


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def repaired(entry: dict) -> dict:
    """Without what a clock measured, and with the loss of the steps since the resumption."""
    entry = without_clock(entry)
    return {**entry, "train_loss": 2 * entry["train_loss"]} if "train_loss" in entry else entry


def assert_same(left: object, right: object) -> None:
    assert not differences(left, right)


def test_scripts_are_all_tried_and_name_nothing_of_ours():
    page = (HERE.parents[1] / "docs" / "start" / "scripts.md").read_text()
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(WORDS)
    for path in SCRIPTS.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = {node.names[0].name for node in nodes if isinstance(node, ast.Import)}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert "transformers" in imported
        assert not {name for name in imported if "lightrainer" in name or name in WORDS}
        assert f"`scripts/{path.name}`" in page


@pytest.mark.parametrize("name", [name for name in WORDS if name not in DRAWING])
def test_results_are_equal(sides, name):
    """Metrics, logs, weights and predictions of a script that was stopped and went on."""
    reference, ours = (side / name / "out" for side in sides)
    for file in [
        *RESULTS,
        *[file for file in WRITTEN.get(name, []) if file.endswith("results.json")],
    ]:
        expected = repaired(read(reference / file))
        assert len(expected) > 1
        assert_same(expected, without_clock(read(ours / file)))
    expected, actual = (read(out / "trainer_state.json") for out in (reference, ours))
    *steps, last = expected.pop("log_history")
    *own_steps, own_last = actual.pop("log_history")
    assert_same(
        [without_clock(entry) for entry in steps], [without_clock(entry) for entry in own_steps]
    )
    assert_same(repaired(last), without_clock(own_last))
    assert_same(expected, actual)
    assert_same(*(load_file(out / "model.safetensors") for out in (reference, ours)))
    for file in [file for file in WRITTEN.get(name, []) if not file.endswith("results.json")]:
        assert (reference / file).read_bytes() == (ours / file).read_bytes()


@pytest.mark.parametrize("name", DRAWING)
def test_results_are_those_of_an_uninterrupted_run(sides, name):
    """Ours, when it went on, has those of the reference that was never stopped, and the
    reference has others.
    """
    whole, stopped, ours = (
        sides[0] / "whole" / name / "out",
        sides[0] / name / "out",
        sides[1] / name / "out",
    )
    assert differences(
        *(without_clock(read(out / "eval_results.json")) for out in (whole, stopped))
    )
    assert_same(*(without_clock(read(out / "eval_results.json")) for out in (whole, ours)))
    expected, actual = (
        read(out / "trainer_state.json")["log_history"][:-1] for out in (whole, ours)
    )
    assert_same(
        [without_clock(entry) for entry in expected], [without_clock(entry) for entry in actual]
    )
    assert_same(*(load_file(out / "model.safetensors") for out in (whole, ours)))
    assert_same(
        *(read(side / "whole" / name / "out" / "all_results.json")["train_loss"] for side in sides)
    )


@pytest.mark.parametrize("name", WORDS)
def test_files_are_the_same(sides, name):
    """Other programs find the files they look for, under the same names."""
    reference, ours = (
        {str(path.relative_to(side)) for path in (side / name).rglob("*")} for side in sides
    )
    assert reference == {path for path in ours if Path(path).name not in MORE_FILES}
    card = f"{name}/out/README.md"
    assert (card in ours) is (name != "own_model")


def test_script_evaluates_a_saved_model_without_training(sides):
    reference, ours = (side / "text_classification" / "saved" for side in sides)
    expected, actual = (without_clock(read(out / "all_results.json")) for out in (reference, ours))
    assert_same(expected, actual)
    trained = read(sides[1] / "text_classification" / "out" / "all_results.json")
    assert actual["eval_loss"] == trained["eval_loss"]
    assert (reference / "predict_results.txt").read_bytes() == (
        ours / "predict_results.txt"
    ).read_bytes()


def test_messages_follow_the_script(sides):
    """Scripts turn the messages of transformers on: so ours are there, in its format."""
    for side in sides:
        output = (side / "causal_lm" / LOG).read_text()
        assert re.search(
            r"^\[INFO\|\w+\.py:\d+\] .* >> \*{5} Running training \*{5}$", output, re.MULTILINE
        )
        assert "***** train metrics *****" in output


def test_script_without_transformers(sides, without_library, tmp_path):
    """A script with a custom model, named on the command line, where the library is not
    installed.
    """
    words = [*COMMON.split(), *WORDS["own_model"].split()]
    (absent,) = said_by([[without_library, "-c", "import transformers"]], [tmp_path], fails=True)
    assert "No module named 'transformers'" in absent
    program = [without_library, *OURS, SCRIPTS / "own_model.py", *words, "--max_steps", 3]
    (output,) = said_by([program], [tmp_path])
    assert "***** eval metrics *****" in output
    folders = sides[0] / "own_model" / "out" / "checkpoint-3", tmp_path / "out"
    expected, actual = (read(folder / "trainer_state.json")["log_history"] for folder in folders)
    assert_same(
        [without_clock(entry) for entry in expected],
        [without_clock(entry) for entry in actual[: len(expected)]],
    )
    assert_same(*(load_file(folder / "model.safetensors") for folder in folders))


def without_the_number_of_processes(entry):
    """The loss of this model is a mean: transformers multiplies it, and its gradient, by the two
    processes.
    """
    doubled = ("loss", "eval_loss", "train_loss", "grad_norm")
    return {name: value / 2 if name in doubled else value for name, value in entry.items()}


def test_script_in_two_processes(tmp_path):
    """Under torchrun: equal to a millionth, and so are the labels that the first process writes."""
    words = [
        *COMMON.split(),
        *WORDS["text_classification"].split(),
        "--max_steps",
        "3",
        "--ddp_backend",
        "gloo",
    ]
    folders = [tmp_path / "reference", tmp_path / "ours"]
    launcher = [
        forked_python(),
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "--rdzv-backend=c10d",
    ]
    launcher.append("--rdzv-endpoint=localhost:0")
    for folder in folders:
        put_data_into(folder)
    program = [SCRIPTS / "text_classification.py", *words]
    for text in said_by([[*launcher, *runner, *program] for runner in (REFERENCE, OURS)], folders):
        assert "process 0 of 2" in text
    expected, actual = (
        without_clock(read(folder / "out" / "all_results.json")) for folder in folders
    )
    expected = without_the_number_of_processes(expected)
    assert actual == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert actual.keys() == expected.keys()
    assert actual["train_samples"] == 40
    histories = [read(folder / "out" / "trainer_state.json")["log_history"] for folder in folders]
    for left, right in zip(*histories, strict=True):
        expected = without_the_number_of_processes(without_clock(left))
        assert expected == pytest.approx(without_clock(right), rel=1e-6, abs=1e-9)
    predicted = [(folder / "out" / "predict_results.txt").read_text() for folder in folders]
    assert predicted[0] == predicted[1]
    assert len(predicted[0].splitlines()) == 15
