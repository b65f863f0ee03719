"""Compare classes of transformers in a group of processes: class_walk_script.py FOLDER CLASS ..."""

import json
import sys
import warnings
from pathlib import Path

import transformers

import lightrainer
from helpers.promises.class_tables import EVEN_ONLY, matches
from helpers.promises.class_walk import differences

folder, *names = sys.argv[1:]
warnings.simplefilter("default")  # models of transformers warn when they are imported and called
found = {}
for name in names:
    kind = getattr(transformers, name)
    found[name] = differences(kind, folder, with_uneven=not matches(name, EVEN_ONLY))
if lightrainer.TrainingArguments(folder).process_index == 0:
    Path(folder, "differences.json").write_text(json.dumps(found))
