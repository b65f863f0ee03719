"""Attacks the states of DeepSpeed in a checkpoint, in one process; DeepSpeed is in the folder $BESIDE.

    python deepspeed_attack_script.py OUTPUT_FOLDER

Writes what came of each attack to `OUTPUT_FOLDER/found.json`: the error, or "went on", and whether a program ran.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "facade")]
sys.path.append(os.environ["BESIDE"])  # last: only what is missing is taken there
os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")

import torch
from attacked import Evil
from tiny import trainer

FILLED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
AUTO = dict.fromkeys(FILLED, "auto")
OUT = Path(sys.argv[1])
PERSISTENT = {0: {}, 2: {}, 3: {"stage3_param_persistence_threshold": 0}}  # small parameters would stay whole
MODEL, OPTIMIZER = "*mp_rank_00_model_states.pt", "*zero_pp_rank_0_mp_rank_00_optim_states.pt"


def made(folder: Path, stage: int, **changes: Any) -> Any:
    config = {**AUTO, "zero_optimization": {"stage": stage, **PERSISTENT[stage]}}
    return trainer(folder, deepspeed=config, max_steps=4, optim="adamw_torch_fused", **changes)


def states(checkpoint: Path) -> Path:
    return checkpoint / "global_step2"


def with_payload(pattern: str) -> Callable[[Path, Evil], Any]:
    def change(checkpoint: Path, evil: Evil) -> None:
        path = next(states(checkpoint).glob(pattern))
        torch.save({**torch.load(path, weights_only=False), "payload": evil}, path)

    return change


def elsewhere(checkpoint: Path, evil: Evil) -> None:
    """The name of the newest states leads to others, with a program in them."""
    other = checkpoint.parent / "other"
    shutil.copytree(states(checkpoint), other)
    path = next(other.glob(MODEL))
    torch.save({**torch.load(path, weights_only=False), "payload": evil}, path)
    (checkpoint / "latest").write_text("../other")


def bare(checkpoint: Path, evil: Evil) -> None:
    import pickle

    next(states(checkpoint).glob(MODEL)).write_bytes(pickle.dumps(evil, protocol=2))


def small(checkpoint: Path, evil: Evil) -> None:
    """States of one element: what a fused step takes for as many as the parameters have."""
    # Without parts there are no states of single processes.
    path = next(states(checkpoint).glob(OPTIMIZER), next(states(checkpoint).glob("*model_states.pt")))
    content = torch.load(path, weights_only=False)

    def shrink(value: Any) -> Any:
        if isinstance(value, dict):
            small = ("exp_avg", "exp_avg_sq")
            return {key: torch.zeros(1) if key in small else shrink(one) for key, one in value.items()}
        return [shrink(one) for one in value] if isinstance(value, list) else value

    torch.save(shrink(content), path)


ATTACKS: dict[str, Callable[[Path, Evil], Any]] = {
    "model states": with_payload(MODEL),
    "optimizer states": with_payload(OPTIMIZER),
    "bare pickle": bare,
    "elsewhere": elsewhere,
    "small": small,
    "none": lambda checkpoint, evil: None,
}


def attack(name: str, stage: int, read_in: int | None = None) -> dict[str, Any]:
    folder = OUT / f"{name}-{stage}{'' if read_in is None else f'-{read_in}'}"
    shutil.copytree(OUT / f"genuine-{stage}", folder)
    checkpoint, evil = folder / "checkpoint-2", Evil(folder / "evil")
    (checkpoint / "_manifest.json").unlink()
    ATTACKS[name](checkpoint, evil)
    one = made(folder, stage if read_in is None else read_in)
    try:
        one.train(resume_from_checkpoint=str(checkpoint))
        said = f"went on to {one.state.global_step}"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "ran": evil.has_run}


def control(name: str) -> bool:
    """Return whether the program would run where DeepSpeed reads the file as it always does."""
    checkpoint = OUT / "model states-2" / "checkpoint-2"
    evil = OUT / "model states-2" / "evil"
    torch.load(next(states(checkpoint).glob(MODEL)), weights_only=False)
    return evil.exists()


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for stage in (0, 2, 3):
        made(OUT / f"genuine-{stage}", stage, save_strategy="steps", save_steps=2).train()
        for name in ATTACKS if stage == 2 else ("model states", "small", "none"):
            found[f"{name} {stage}"] = attack(name, stage)
    for name in ("model states", "optimizer states", "small", "none"):
        found[f"{name} elsewhere"] = attack(name, 2, read_in=3)
    found["control"] = control("model states")
    (OUT / "found.json").write_text(json.dumps(found, indent=1))
