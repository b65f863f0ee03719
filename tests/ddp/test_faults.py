"""One of several processes fails, dies or hangs: the others end too, with and without torchrun."""

import json
import re

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks, forked_torchrun

SCRIPTS = HELPERS / "ddp"
SECONDS = 300
FAILED = r"OtherProcessError: Process {} \(pid \d+ on \S+\) failed: {}"
NO_NUMBER = "ArithmeticError: no number left"
BY_PROCESS_1 = FAILED.format(1, NO_NUMBER)
GONE = r"Connection (closed|reset) by peer|Broken pipe"  # gloo's own error
WORKER = r"RuntimeError: DataLoader worker \(pid"
ABSENT = (
    r"OtherProcessError: Process 0 of 2 could not join .* at 127.0.0.1:\d+ with ddp_timeout=2: "
    r"DistStoreError"
)
SCENARIOS = {  # exit codes, and the error of each process
    "raises": ([1, 1], [BY_PROCESS_1, NO_NUMBER]),
    "third_of_three": (
        [1, 1, 1],
        [FAILED.format(2, NO_NUMBER), FAILED.format(2, NO_NUMBER), NO_NUMBER],
    ),
    "killed": ([1, -9], [GONE, ""]),
    "first_killed": ([-9, 1], ["", GONE]),
    "leaves": ([1, 0], [GONE, ""]),
    "worker_dies": ([1, 1], [FAILED.format(1, WORKER), WORKER]),
    "before_training": ([1, 1], [BY_PROCESS_1, NO_NUMBER]),
    "catches": ([1, 0], [BY_PROCESS_1, ""]),
    "in_evaluation": ([1, 1], [BY_PROCESS_1, NO_NUMBER]),
    "absent": (
        [1],
        [ABSENT],
    ),
}
LAUNCHED = {  # what torchrun shows as the cause: the error of the process that it saw end first
    "raises": rf"rank +: 1 .*{NO_NUMBER}|rank +: 0 .*{BY_PROCESS_1}",
    "killed": r"rank +: 1 .*Signal 9 \(SIGKILL\) received by PID",
    "hangs": r"rank +: 0 .*RuntimeError: .*Timed out",
}
SWITCHES = (
    "should_log",
    "should_evaluate",
    "should_save",
    "should_epoch_stop",
    "should_training_stop",
)
DECISIONS = [f"{switch}_{who}" for switch in SWITCHES for who in ("alone", "together")]
DECISIONS += ["decided_outside", "stop_before_save", "decided_by_other"]
DECISIONS += ["log_alone", "log_together"]


def of_two(script, folder, *options, **environment):
    """Return the output of two processes under torchrun, which must succeed."""
    log = folder / "log.txt"
    code, output = forked_torchrun(
        SCRIPTS / script, str(folder), log=log, seconds=SECONDS, options=options, **environment
    )
    assert code == 0, output[-8000:]
    return output


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    options = {"log": folder / "log.txt", "seconds": SECONDS, "processes": 0}
    output = finished_ranks(
        SCRIPTS / "fault_script.py", str(folder), *SCENARIOS, *DECISIONS, **options
    )
    return folder, json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_failed_rank_ends_the_others_with_its_error(faults, scenario):
    """No launcher ends the other processes, or their workers: gloo notices that a process is
    gone.
    """
    folder, ended = faults
    codes, errors = SCENARIOS[scenario]
    output = [
        (folder / f"{scenario}-rank{rank}.txt").read_text(errors="replace")
        for rank in range(len(codes))
    ]
    assert ended[scenario]["codes"] == codes, "\n".join(output)[-4000:]
    assert ended[scenario]["left"] == []
    for text, error in zip(output, errors, strict=True):
        is_named_elsewhere = "OtherProcessError" in error and error != ABSENT
        assert re.search(error, text), text[-3000:]
        assert ("OtherProcessError" in text) == ("OtherProcessError" in error)
        assert ("Traceback" in text) == bool(error and not is_named_elsewhere)
        assert "terminate called" not in text


@pytest.mark.parametrize("scenario", LAUNCHED)
def test_torchrun_ends_the_others_and_shows_the_cause(tmp_path, scenario):
    log = tmp_path / "log.txt"
    code, output = forked_torchrun(
        SCRIPTS / "fault_actions.py", scenario, str(tmp_path), log=log, seconds=SECONDS
    )
    assert code == 1
    *_, summary = output.split("Root Cause (first observed failure):")
    assert re.search(LAUNCHED[scenario], summary, re.DOTALL), output[-4000:]


def output_of(faults, scenario):
    """Return the exit codes and the outputs of the two processes of a scenario."""
    folder, ended = faults
    return ended[scenario]["codes"], [
        (folder / f"{scenario}-rank{rank}.txt").read_text() for rank in (0, 1)
    ]


@pytest.mark.parametrize("switch", SWITCHES)
def test_decision_of_one_rank_names_switch_and_callback(faults, switch):
    """Both end; process 0 hosts the store, so that the other one may not hear the reason before
    it is closed.
    """
    codes, output = output_of(faults, f"{switch}_alone")
    assert codes == [1, 1]
    cause = (
        f"control.{switch} was set by Decides.on_step_end in process 0 after step 2, but not in "
        "process 1"
    )
    assert cause in output[0]


def test_decision_of_one_rank_outside_of_callbacks_names_the_switch(faults):
    codes, output = output_of(faults, "decided_outside")
    assert codes == [1, 1]
    assert (
        "control.should_training_stop was set in process 0 after step 3, but not in process 1"
        in output[0]
    )


def test_log_of_one_rank_in_place_of_one_that_is_due_is_named(faults):
    """The other process takes the mean loss of both for the log that is due."""
    codes, output = output_of(faults, "log_alone")
    assert codes == [1, 1]
    assert (
        "trainer.log was called in process 0 after step 2, in place of the log that is due there, "
        "but not in process 1"
    ) in output[0]
    assert output_of(faults, "log_together")[0] == [0, 0]


def test_decision_to_stop_of_one_rank_is_named_when_a_checkpoint_is_due(faults):
    """Where a training ends decides how the checkpoint is written, in which the others take
    part.
    """
    codes, output = output_of(faults, "stop_before_save")
    assert codes == [1, 1]
    assert (
        "control.should_training_stop was set by Decides.on_step_end in process 0 after step 2"
        in output[0]
    )


def test_decision_of_another_rank_is_named_before_the_timeout(faults):
    """Process 0 may be late, so the other one warns, and fails only at the timeout."""
    codes, output = output_of(faults, "decided_by_other")
    assert codes == [1, 1]
    cause = (
        "control.should_evaluate was set by Decides.on_step_end in process 1 after step 2, but not "
        "in process 0"
    )
    warning = f"Waiting until ddp_timeout (4 s): {cause}"
    assert warning in output[1]
    assert "Waiting until" not in output[0]


@pytest.mark.parametrize("switch", SWITCHES)
def test_decision_of_all_ranks_is_followed(faults, switch):
    """The control, in which process 0 takes its time: the other one waits for it."""
    codes, output = output_of(faults, f"{switch}_together")
    assert codes == [0, 0], output


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    # which also fails if a thread of the process group is left at the end
    of_two("together_script.py", folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


DIFFERENT = {
    "max_steps": "max_steps: 5 in process 0, 4 in process 1",
    "learning_rate": "learning_rate: 0.001 in process 0, 0.002 in process 1",
    "eval_strategy": "eval_strategy: 'no' in process 0, 'steps' in process 1",
    "lr_scheduler_kwargs": "lr_scheduler_kwargs: {} in process 0, {'num_cycles': 2} in process 1",
    "shape": (
        "parameter layer.weight: 3 x 8 of float32 in process 0, 4 x 8 of float32 in process 1"
    ),
    "names": "parameter renamed.weight: missing in process 0, 3 x 8 of float32 in process 1",
    "frozen": "parameter layer.bias: 3 of float32 in process 0, 3 of float32, frozen in process 1",
    "length": "length of train_dataset: 32 in process 0, 30 in process 1",
    "uneven_batches": (
        "optimizer steps (remove even_batches=False, or set max_steps or "
        "dataloader_drop_last=True): 8 in process 0, 7 in process 1"
    ),
    "uneven_micro_batches": (
        "batches in an epoch (remove even_batches=False, or set dataloader_drop_last=True): 8 "
        "in process 0, 7 in process 1"
    ),
    "evaluation": "per_device_eval_batch_size: 2 in process 0, 3 in process 1",
}


def test_differences_between_ranks_are_named_before_the_first_step(together):
    first, second = (rank["mismatches"] for rank in together)
    assert first == second
    assert first.pop("may_differ") == []  # what is about one process alone
    assert set(first) == set(DIFFERENT)
    for name, line in DIFFERENT.items():
        assert first[name][0] == "The processes do not have the same settings:"
        assert f"- {line}" in first[name], first[name]
    # Nothing else is reported to differ, except what follows from it.
    assert all(len(first[name]) == 3 for name in ("max_steps", "learning_rate", "frozen"))


def test_streams_of_other_lengths_end_together(together):
    """In each case the second process has less. The steps are the same, and a warning says
    which process had how many batches.
    """
    first, second = (rank["uneven"] for rank in together)
    for name in ("stream", "sized", "read_alone", "own_loader"):
        (steps, samples, epoch), messages = first[name]
        assert second[name] == [[steps, samples, epoch], messages]
        assert re.search(
            r"Training data: processes \[1\] had \d+ batches, and the others more\. All stop "
            r"after \d+",
            messages[0],
        )
        assert "metric" not in messages[0]
    assert first["stream"][0][0] == 10
    assert first["sized"][0][0] == 4  # 16 samples of one process, shared as if both had them
    assert "processes [1] had 5 batches" in first["own_loader"][1][0]
    assert first["empty"] == second["empty"]
    assert first["empty"].startswith(
        "Training data: processes [1] had 0 batches, and the others more."
    )


def test_evaluations_without_even_batches_give_every_sample_once(together):
    """Loops of a script over the loader get what they asked for."""
    first, second = (rank["uneven_evaluations"] for rank in together)
    for result in (first, second):
        assert result["evaluated"] == [13] * 4
        assert (result["predicted"], result["same"]) == (13, True)
    assert (first["own_loop"], second["own_loop"]) == ([4, 4], [4, 1])


def test_streams_that_are_the_same_are_read_in_silence(together):
    for rank in together:
        (steps, *_), messages = rank["uneven"]["same"]
        assert (steps, messages) == (8, [])
        assert rank["uneven"]["evaluated_same"] == [13, []]


def test_evaluation_uses_batches_that_all_ranks_have(together):
    first, second = (rank["uneven"] for rank in together)
    assert first["evaluated"] == second["evaluated"]
    assert first["evaluated"][0] == 16
    assert (
        "Evaluation: processes [1] had 4 batches, and the others more." in first["evaluated"][1][0]
    )
    assert "Predictions and metrics leave out the remaining samples." in first["evaluated"][1][0]


def test_error_on_all_ranks_at_once_is_their_own(together):
    """The script catches it, and continues: twice more, in the same process group."""
    for number, rank in enumerate(together):
        assert rank["ends"]["other class"] == ["ArithmeticError", f"of {number}"]
        assert rank["ends"]["same text"] == ["RuntimeError", "of both"]
        assert rank["ends"]["steps"] == [8, 8]


def test_error_of_torch_names_the_earlier_error(together):
    """The control of the test above: both processes raise a `RuntimeError`, and one of them is
    the first.
    """
    errors = [rank["ends"]["other text"] for rank in together]
    first = next(number for number, (kind, _) in enumerate(errors) if kind == "RuntimeError")
    assert errors[first] == ["RuntimeError", f"of {first}"]
    kind, text = errors[1 - first]
    assert kind == "OtherProcessError"
    assert re.fullmatch(
        rf"Process {first} \(pid \d+ on \S+\) failed: RuntimeError: of {first}\. "
        rf"So process {1 - first} \(pid \d+ on \S+\) cannot continue\.",
        text,
    )


def test_torchrun_starts_it_again_until_it_is_done(tmp_path):
    """Five faults: kills of either process, in a step, before the first checkpoint and after one;
    an error; an exit.

    The end is that of a training to which nothing happened. The newest folder, which is another
    job's, is left alone.
    """
    # time for the other one to say why it ends
    options = ("--max-restarts=5", "--monitor-interval=2")
    output = of_two(
        "restarted_script.py", tmp_path, *options, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"
    )
    for rank in (0, 1):
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert result["attempt"] == 5
        assert result["restarted"] == result["whole"]
        assert (tmp_path / f"began-rank{rank}.txt").read_text().split() == [
            "0",
            "0",
            "2",
            "4",
            "6",
            "8",
        ]
    assert (
        "The job was restarted before it had written a checkpoint; the training begins from "
        "scratch." in output
    )
    assert "The job was restarted; resuming from" in output
    assert re.search(BY_PROCESS_1, output)
    assert "terminate called" not in output
