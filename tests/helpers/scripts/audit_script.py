"""Run by the runner: compares the served modules with those of the library, which another
process has looked at.
"""

import gc
import importlib
import json
import pickle
import sys

freezes = []
gc.freeze = lambda: freezes.append("torch" in sys.modules)

from lightrainer.interception.names import SERVED, TOP_LEVEL
from lightrainer.interception.targets import resolve

theirs = json.loads(sys.stdin.read())
missing, wrong, several = [], [], []
for inside, names in theirs.items():
    module = importlib.import_module(f"transformers.{inside}")
    for name in names:
        if not hasattr(module, name):
            missing.append(f"{inside}.{name}")
    listed = dir(module)
    missing += [f"{inside}.{name} in dir()" for name in SERVED[inside] if name not in listed]

import transformers

for inside, names in SERVED.items():
    if inside not in theirs:
        continue
    module = importlib.import_module(f"transformers.{inside}")
    for name, target in names.items():
        if getattr(module, name) is not resolve(target):
            wrong.append(f"{inside}.{name}")
for name, inside in TOP_LEVEL.items():
    ours = getattr(importlib.import_module(f"transformers.{inside}"), name)
    if getattr(transformers, name) is not ours or not ours.__module__.startswith("lightrainer."):
        several.append(name)
    scope = {}
    exec(f"from transformers import {name}", scope)
    if scope[name] is not ours or pickle.loads(pickle.dumps(ours)) is not ours:
        several.append(name)

# One class whichever module it is asked of, also where the library's own module has imported it.
classes = {}
for inside in theirs:
    for name, value in vars(sys.modules[f"transformers.{inside}"]).items():
        if isinstance(value, type) and name == value.__name__ and not name.startswith("_"):
            classes.setdefault(name, set()).add(f"{value.__module__}.{value.__qualname__}")
several += [f"{name}: {found}" for name, found in classes.items() if len(found) > 1]

# What is the library's own builds on ours, and its own modules hold ours.
from transformers.integrations import NeptuneCallback, TensorBoardCallback, integration_utils
from transformers.utils.notebook import NotebookProgressCallback

import lightrainer

built = {
    "its callbacks are ours": (
        issubclass(NeptuneCallback, lightrainer.TrainerCallback)
        and issubclass(NotebookProgressCallback, lightrainer.TrainerCallback)
    ),
    "its table has ours": (
        integration_utils.INTEGRATION_TO_CALLBACK["tensorboard"] is lightrainer.TensorBoardCallback
    ),
    "one callback": TensorBoardCallback is lightrainer.TensorBoardCallback,
    "its own": (
        not transformers.PreTrainedModel.__module__.startswith("lightrainer")
        and not transformers.AutoTokenizer.__module__.startswith("lightrainer")
    ),
    "the trainer": transformers.Trainer is transformers.trainer.Trainer is lightrainer.Trainer,
    "a module is pickled by name": pickle.loads(pickle.dumps(transformers)) is transformers,
    "star": (
        "Trainer" in (lambda scope: exec("from transformers.trainer import *", scope) or scope)({})
    ),
    "file": transformers.trainer.__file__.endswith("trainer.py"),
    "what the library has loaded is left alone by the collector": freezes == [True],
}
print(json.dumps({"missing": missing, "wrong": wrong, "several": several, "built": built}))
