"""A training into an object store: `STEPS FOLDER ADDRESS`, and `machines` or an argument of FSDP
as JSON.
"""

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    steps, folder, address, *words = sys.argv[1:]
    rank = os.environ.get("RANK", "0")
    if "machines" in words:  # each process on a separate one
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        os.environ["LIGHTRAINER_STORES"] += f"-{rank}"

    import torch

    from helpers.trainer.tiny_trainings import (
        At,
        make_trainer,
        points,
        weights,
        with_trainer_in_callbacks,
    )

    more = json.loads(next((word for word in words if word.startswith("{")), "{}"))
    options = {
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": int(steps),
        "save_total_limit": 2,
    }
    # Each checkpoint is sent before the next one is due.
    begins = []
    calls = [
        At("on_save", lambda one, *_: one._lightrainer.object_store.wait_for_uploads()),
        At("on_train_begin", lambda one, state, control: begins.append(state.global_step)),
    ]
    found = with_trainer_in_callbacks(
        make_trainer(
            address,
            train_dataset=points(32),
            lr_scheduler_type="constant",
            callbacks=calls,
            **options,
            **more,
        )
    )
    found.train(resume_from_checkpoint="resume" in words)
    whole = {
        name: getattr(one, "full_tensor", lambda one=one: one)()
        for name, one in weights(found.model).items()
    }
    torch.save([*begins, whole], Path(folder, f"{rank}.pt"))
