"""Compare kinds of user code in a group of processes: user_kinds_script.py FOLDER KIND ..."""

import gc
import json
import sys
import warnings
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel
from user_code import KINDS

from lightrainer import TrainingArguments

folder, *names = sys.argv[1:]
warnings.simplefilter("default")
found = {}
for name in names:
    kind = KINDS[name]
    found[name] = {f"batches of {size}": kind.difference(size, folder) for size in (4, 2)}
gc.collect()
found["wrappers left"] = sum(type(each) is DistributedDataParallel for each in gc.get_objects())
if TrainingArguments(folder).process_index == 0:
    Path(folder, "differences.json").write_text(json.dumps(found))
