"""Compare kinds of user code in a group of processes: user_kinds_script.py FOLDER KIND ..."""

import gc
import json
import sys
import weakref
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from helpers.promises.user_code import KINDS
from lightrainer import TrainingArguments

folder, *names = sys.argv[1:]

# Note every wrapper that is made.
wrappers: list[weakref.ref] = []
initialize = DistributedDataParallel.__init__


def noted(wrapper: DistributedDataParallel, *args, **kwargs) -> None:
    wrappers.append(weakref.ref(wrapper))
    initialize(wrapper, *args, **kwargs)


DistributedDataParallel.__init__ = noted

# Windows of one micro-batch of four, and of two of two, in each process.
differences = {}
for name in names:
    kind = KINDS[name]
    differences[name] = {f"batches of {size}": kind.difference(size, folder) for size in (4, 2)}

gc.collect()
left = sum(wrapper() is not None for wrapper in wrappers)
found = {"differences": differences, "wrappers": {"made": len(wrappers), "left": left}}
if TrainingArguments(folder).process_index == 0:
    Path(folder, "found.json").write_text(json.dumps(found))
