"""Trains together with the processes of other machines; started by torchrun's agents, see
`node_scenarios_script.py`.

    node_training_script.py WHAT FOLDER [...]

`NODE_DISK` is the folder that belongs to this machine, `NODE` its number. What a process saw goes
to `FOLDER/<what>-rank<rank>.json`, or where the training says.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from helpers.processes.rank_training import QUIET, Classifier, points

PARENT_DEATH_SIGNAL = 1  # of `prctl`
RANK, SIZE, NODE = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "NODE"))
DISK = Path(os.environ["NODE_DISK"])
LIBRARY: Any = importlib.import_module(os.environ.get("LIBRARY", "lightrainer"))


def arguments(output: Path, **options: Any) -> Any:
    defaults = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "learning_rate": 3e-2,
        "logging_steps": 1,
    }
    defaults |= {"save_steps": 2, "save_strategy": "steps", "optim": "adamw_torch", **QUIET}
    defaults |= {"ddp_timeout": 60, "ddp_find_unused_parameters": False}
    return LIBRARY.TrainingArguments(output_dir=str(output), **{**defaults, **options})


def train(args: Any, *callbacks: Any, resume: Any = None) -> dict[str, Any]:
    """Train, and tell what is left of it in this process."""
    torch.manual_seed(7)
    trainer = LIBRARY.Trainer(
        Classifier(), args, train_dataset=points(24), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return {
        "weights": {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()},
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "step": trainer.state.global_step,
        "size": SIZE,
        "place": [
            args.process_index,
            args.local_process_index,
            bool(args.should_save),
            bool(args.should_log),
        ],
    }


def write(folder: Path, name: str, found: dict[str, Any]) -> None:
    # Renamed when it is complete: a test may wait for the file.
    path = folder / f"{name}-rank{RANK}.json"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(path)


def places(folder: Path, name: str, options: str, resume: str = "") -> None:
    """Train with checkpoints on the disk of each machine; record who logs, and whose turn it is
    when others wait.
    """
    args = arguments(
        DISK / "out", log_level="info", log_level_replica="warning", **json.loads(options)
    )
    turns = {}
    for local in (True, False):
        with args.main_process_first(local=local):
            came = sorted(path.name for path in folder.glob(f"{name}-{local}-*"))
            turns[str(local)] = came
            (folder / f"{name}-{local}-{NODE}-{args.local_process_index}").touch()
    logs: list[str] = []

    class Notes(LIBRARY.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            logs.append(f"{state.is_local_process_zero} {state.is_world_process_zero}")

    result = train(args, Notes(), resume=bool(resume) or None)
    levels = [args.get_process_log_level(), args.local_rank]
    write(
        folder,
        name,
        {**result, "turns": turns, "logs": sorted(set(logs)), "levels": levels, "node": NODE},
    )


def interrupted(folder: Path, name: str, action: str, seconds: str = "60") -> None:
    """Train until something happens to a machine: after the third step its process says so, and
    waits for it.
    """
    import lightrainer

    class Waiting(lightrainer.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with (folder / f"{name}-began{NODE}.txt").open("a") as stream:
                stream.write(f"{state.global_step} of {SIZE}\n")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            hit, back = folder / f"{name}-hit", folder / f"{name}-back"
            if action == "alone" and SIZE == 1 and not back.exists():
                # The other machine has not come yet, or is gone: this one stops when the launcher
                # sees it (again).
                if hit.exists() and state.global_step < 5:
                    return
                back.touch() if hit.exists() else None
                signal.pause()
            elif not hit.exists() and state.global_step == 3 and NODE == 1:
                hit.touch()
                while action != "orphaned" or not back.exists():
                    time.sleep(0.01)

    shared = folder / f"{name}-out"
    args = arguments(shared, ddp_timeout=int(seconds), save_steps=1)
    write(folder, name, train(args, Waiting()))


def _outlive_launcher() -> None:
    """A program that torchrun starts does; a function that it forks is sent a signal, which is
    taken back here.
    """
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, 0, 0, 0, 0)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    _outlive_launcher()
    scenario, folder, *words = sys.argv[1:]
    {"places": places, "interrupted": interrupted}[scenario](Path(folder), *words)


if __name__ == "__main__":
    main()
