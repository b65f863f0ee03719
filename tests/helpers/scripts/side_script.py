"""Runs scripts as Python does, each in a process forked from this one, in which what is slow to
import is imported.

Started with plain Python this is the reference's side, and with `python -m lightrainer` ours. Reads
jobs from a file: the folder to be in, the script, its words. Prints whose Trainer it was, and the
exit codes.
"""

import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

LOG = "log.txt"
LIBRARIES = ("accelerate", "datasets", "PIL.ImageDraw", "pandas", "transformers.testing_utils")
# In the order in which they are imported: those of interception have begun by then.
FROM_TRANSFORMERS = (
    *(
        "AlbertForMultipleChoice",
        "BertForQuestionAnswering",
        "BertForSequenceClassification",
        "GPT2LMHeadModel",
    ),
    *(
        "DistilBertForTokenClassification",
        "RobertaForMaskedLM",
        "Seq2SeqTrainer",
        "T5ForConditionalGeneration",
    ),
    *("ViTForImageClassification", "ViTImageProcessor"),
)


def warm_up() -> str:
    """Import what scripts import, and what training does; returns the package of the Trainer."""
    import transformers

    for name in FROM_TRANSFORMERS:
        getattr(transformers, name)
    for name in LIBRARIES:
        importlib.import_module(name)
    package = transformers.Trainer.__module__.partition(".")[0]
    if package == "lightrainer":
        importlib.import_module("lightrainer.facade.trainer.lightning_trainer")
    # The picture of the losses, which ours adds to a card, takes longer than these trainings.
    sys.modules["matplotlib"] = None
    gc.freeze()  # or each child would copy what the collector touches
    return package


def run(folder: str, script: str, words: list[str]) -> int:
    """Run a script in a child; what it says goes into a file of the folder."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.chdir(folder)
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = [script, *words]
        sys.path[0] = str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    todo = json.loads(Path(sys.argv[1]).read_text())
    trainer = warm_up()
    print(json.dumps({"trainer": trainer, "codes": [run(*job) for job in todo]}))
