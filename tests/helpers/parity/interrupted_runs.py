"""Trainings that stop right after a checkpoint: their folders, and resumptions by the other library."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, Run, assert_same, checkpoint_state, run

DIRECTIONS = ["theirs resumed by ours", "ours resumed by theirs", "ours resumed by ours"]


def folders(run: Run) -> list[str]:
    return sorted(path.name for path in run.folder.iterdir())


def interruption(step: int):
    """The extras of a case that saves at a step and stops there, as a killed run that had just
    saved.
    """

    def extras(api):
        class Interrupt(api.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == step:
                    control.should_save = control.should_training_stop = True

        return {"callbacks": [Interrupt()]}

    return extras


def interrupted(api, case: Case, step: int, folder: Path) -> Run:
    """Train as a case says, but stop at a step that was saved."""

    def extras(api):
        options = case.extras(api)
        return {
            **options,
            "callbacks": [*interruption(step)(api)["callbacks"], *options.get("callbacks", [])],
        }

    stopped = run(api, case.but(extras=extras), folder)
    assert stopped.state["global_step"] == step
    assert (folder / f"checkpoint-{step}").is_dir()
    return stopped


def exchanged(reference, ours, case: Case, folder: Path, direction: str, step: int = 3) -> Path:
    """The run that resumes from the other's checkpoint, after comparing it with the reference's
    straight one.
    """
    straight = run(reference, case, folder / "straight")
    first = reference if direction.startswith("theirs") else ours
    second = reference if direction.endswith("theirs") else ours
    interrupted(first, case, step, folder / "stopped")
    checkpoint = folder / "stopped" / f"checkpoint-{step}"
    resumed = run(second, case.but(model_seed=99), folder / "resumed", resume=str(checkpoint))
    for finished in (straight, resumed):
        finished.history[-1].pop("train_loss")
    assert_same(straight, resumed, ignoring=("output", "trainer"))
    return checkpoint


def assert_same_checkpoint(expected: Path, actual: Path) -> None:
    """All documented files exist; what can be compared is equal."""
    missing = {path.name for path in expected.iterdir()} - {path.name for path in actual.iterdir()}
    assert not missing, f"{actual.name} lacks {sorted(missing)}"
    messages = differences(
        load_file(expected / "model.safetensors"),
        load_file(actual / "model.safetensors"),
        "weights",
    )
    messages += differences(checkpoint_state(expected), checkpoint_state(actual), "trainer_state")
    for name in ("optimizer.pt", "scheduler.pt"):
        if (expected / name).exists():
            left, right = (
                torch.load(folder / name, weights_only=True) for folder in (expected, actual)
            )
            messages += differences(left, right, name)
    assert not messages, "\n".join(messages[:20])
