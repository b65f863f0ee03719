"""A Python that has imported torch already, and is forked for what a new one would be started for.

Started without arguments, it reads what to run from its input: JSON with `words` (`-c` and code, or a script; then the
arguments), `cwd`, `environment`, `input` and the paths `stdout` and `stderr`, a line each; exit codes are its answer.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import sys

# What torch, Lightning and transformers import, but nothing that looks for transformers, or that is served.
IMPORTED = (
    "torch torch._dynamo torch.distributed.fsdp torch.distributed.tensor torch.utils.flop_counter numpy pandas yaml"
)
IMPORTED += " PIL.Image matplotlib.pyplot"


def become(words, environment):
    """What Python does at its start, and with its command line."""
    os.environ.clear()
    os.environ.update(environment)
    code = words[0] == "-c"
    script = "-c" if code else words[0]
    sys.argv = [script, *words[2 if code else 1 :]]
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[0:1] = ["" if code else os.path.dirname(os.path.abspath(script)), *paths]
    sys.modules.pop("sitecustomize", None)
    if paths:
        importlib.import_module("sitecustomize")
    if code:
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        runpy.run_path(script, run_name="__main__")


def fork(asked):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.chdir(asked["cwd"])
    os.dup2(os.open(asked["input"], os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), number)
    become(asked["words"], asked["environment"])
    sys.exit()  # as Python ends, with what was registered for that


def main():
    for name in IMPORTED.split():
        importlib.import_module(name)
    assert not {"transformers", "lightrainer", "lightning", "accelerate", "huggingface_hub"} & set(sys.modules)
    gc.freeze()
    if "triton" in sys.modules:  # which comes with a torch for CUDA, and lists at the end what was not freed
        atexit.register(gc.unfreeze)
    with os.fdopen(os.dup(1), "w") as answers, os.fdopen(os.dup(0)) as questions:
        for line in questions:
            print(fork(json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
