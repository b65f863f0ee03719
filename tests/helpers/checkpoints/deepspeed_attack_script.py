"""Attacks the states of DeepSpeed in a checkpoint, in one process, forked from one that finds
DeepSpeed.

    python deepspeed_attack_script.py OUTPUT_FOLDER

Writes what came of each attack to `OUTPUT_FOLDER/found.json`, by its name and the stages in which
the states were written and read: the error, or "went on", and whether a program ran.
"""

import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch

from helpers.checkpoints.harmful_checkpoints import Evil
from helpers.trainer.tiny_trainings import make_trainer

FILLED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
OUT = Path(sys.argv[1])
# small parameters would stay whole
PERSISTENT = {0: {}, 2: {}, 3: {"stage3_param_persistence_threshold": 0}}
MODEL, OPTIMIZER = "*mp_rank_00_model_states.pt", "*zero_pp_rank_0_mp_rank_00_optim_states.pt"


def made(folder: Path, stage: int, **changes: Any) -> Any:
    config = {
        **dict.fromkeys(FILLED, "auto"),
        "zero_optimization": {"stage": stage, **PERSISTENT[stage]},
    }
    return make_trainer(folder, deepspeed=config, max_steps=4, optim="adamw_torch_fused", **changes)


def model_states(states: Path, evil: Evil, pattern: str = MODEL) -> None:
    path = next(states.glob(pattern))
    torch.save({**torch.load(path, weights_only=False), "payload": evil}, path)


def optimizer_states(states: Path, evil: Evil) -> None:
    model_states(states, evil, OPTIMIZER)


def elsewhere(states: Path, evil: Evil) -> None:
    """The name of the newest states leads to others, with a program in them."""
    model_states(Path(shutil.copytree(states, states.parents[1] / "other")), evil)
    (states.parent / "latest").write_text("../other")


def bare_pickle(states: Path, evil: Evil) -> None:
    next(states.glob(MODEL)).write_bytes(pickle.dumps(evil, protocol=2))


def small(states: Path, evil: Evil) -> None:
    """States of one element: what a fused step takes for as many as the parameters have."""
    # Without parts there are no states of single processes.
    path = next(states.glob(OPTIMIZER), next(states.glob("*model_states.pt")))
    content = torch.load(path, weights_only=False)

    def shrink(value: Any) -> Any:
        if isinstance(value, dict):
            small = ("exp_avg", "exp_avg_sq")
            return {
                key: torch.zeros(1) if key in small else shrink(item) for key, item in value.items()
            }
        return [shrink(item) for item in value] if isinstance(value, list) else value

    torch.save(shrink(content), path)


def attacked(attack: Callable[[Path, Evil], None], written: int, read: int) -> dict[str, Any]:
    folder = OUT / f"{attack.__name__}-{written}-{read}"
    shutil.copytree(OUT / f"genuine-{written}", folder)
    checkpoint, evil = folder / "checkpoint-2", Evil(folder / "evil")
    (checkpoint / "_manifest.json").unlink()
    attack(checkpoint / "global_step2", evil)
    try:
        made(folder, read).train(resume_from_checkpoint=str(checkpoint))
        result = "went on"
    except Exception as error:
        result = str(error)
    return {"message": result, "ran": evil.has_run}


if __name__ == "__main__":
    for stage in (0, 2, 3):
        made(OUT / f"genuine-{stage}", stage, save_strategy="steps", save_steps=2).train()
    attacks = dict.fromkeys((model_states, small), ((0, 0), (2, 2), (3, 3), (2, 3)))
    attacks |= {optimizer_states: ((2, 2), (2, 3)), elsewhere: ((2, 2),), bare_pickle: ((2, 2),)}
    found = {
        f"{attack.__name__} {written} {read}": attacked(attack, written, read)
        for attack, stages in attacks.items()
        for written, read in stages
    }
    (OUT / "found.json").write_text(json.dumps(found, indent=1))
