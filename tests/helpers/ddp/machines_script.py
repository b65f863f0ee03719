"""Simulates two machines without a shared disk, whose checkpoints differ, for `torchrun`.

    torchrun --nproc_per_node=2 machines_script.py OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from helpers.trainer.tiny_trainings import At, make_trainer, with_trainer_in_callbacks

RANK = int(os.environ["RANK"])


def trained(folder: Path, max_steps: int, **options: Any) -> list[int]:
    """Train, and return the steps that began."""
    steps: list[int] = []
    noted = At("on_step_begin", lambda _, state, __: steps.append(state.global_step))
    trainer = with_trainer_in_callbacks(
        make_trainer(
            folder,
            save_strategy="steps",
            save_steps=1,
            save_on_each_node=True,
            max_steps=max_steps,
            callbacks=[noted],
        )
    )
    trainer.train(**options)
    return steps


def main(folder: Path) -> dict[str, Any]:
    own_disk = folder / f"machine{RANK}"
    trained(own_disk, 3)
    if RANK == 1:
        (own_disk / "checkpoint-3" / "model.safetensors").write_bytes(b"damaged")
    record: dict[str, Any] = {"steps": trained(own_disk, 4, resume_from_checkpoint=True)}

    if RANK == 1:
        for checkpoint in own_disk.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    try:
        trained(own_disk, 5, resume_from_checkpoint=True)
    except ValueError as error:
        record["error"] = str(error)
    return record


if __name__ == "__main__":
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    where = Path(sys.argv[1])
    (where / f"rank{RANK}.json").write_text(json.dumps(main(where)))
