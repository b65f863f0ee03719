"""Modules and `DataModule` under plain `lightning.Trainer` in two processes; for `torchrun`.

torchrun --nproc_per_node=2 module_script.py LIBRARY SCENARIO OUTPUT_FOLDER
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch.strategies import ModelParallelStrategy

sys.path.insert(0, str(Path(__file__).parent))
from module_runs import evaluated, interrupted, pairs, words


def main() -> None:
    _, scenario, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ddp = {"strategy": "ddp", "devices": 2}
    sharded = {"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1), "devices": 2}
    found = {
        "words": words(4, folder / "ddp", **ddp),
        "accumulated": words(2, folder / "accumulated", accumulate_grad_batches=2, **ddp),
        "sharded": words(4, folder / "sharded", later=True, **sharded),
        "evaluated": evaluated(4, **ddp),
        "pairs": pairs(4, **ddp),
        "pairs accumulated": pairs(2, accumulate_grad_batches=2, **ddp),
        "task": pairs(4, task=True, **ddp),
        "task accumulated": pairs(2, task=True, accumulate_grad_batches=2, **ddp),
        "interrupted": interrupted(4, folder, **ddp),
    }
    (folder / f"{scenario}-rank{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
