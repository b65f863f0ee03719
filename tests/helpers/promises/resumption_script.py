"""A row of the table of resumptions, of several processes: resumption_script.py NAME FOLDER, by
torchrun.
"""

import json
import os
import sys
from pathlib import Path

import torch

from helpers.promises.resumption_walk import SETTINGS, table_row, walk
from lightrainer.lightning_modules.internals import lightning_internals

RANK = int(os.environ["RANK"])  # Lightning removes it after a run


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    with lightning_internals.quiet():
        row = table_row(name, walk(SETTINGS[name], folder))
    if RANK == 0:
        (folder / "row.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()
