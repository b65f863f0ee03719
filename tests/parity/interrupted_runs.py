"""Trainings that stop right after a checkpoint, and what folders they leave."""

from pathlib import Path

from harness import Case, Run, run


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
        given = case.extras(api)
        return {
            **given,
            "callbacks": [*interruption(step)(api)["callbacks"], *given.get("callbacks", [])],
        }

    stopped = run(api, case.but(extras=extras), folder)
    assert stopped.state["global_step"] == step
    assert (folder / f"checkpoint-{step}").is_dir()
    return stopped
