"""Run the blocks of documentation pages: one job per line of stdin, a page and the folder to run it
in.

The libraries are imported once and each page runs in a fork of this process, so that a page costs
what its blocks do.
"""

import gc
import json
import os
import re
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"^( *)(?:<!-- run: ([^\n]*) -->\n\1)?```(\S+)?[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL
)
# What keeps a block from running here: a comment before it, which readers do not see, names it.
# With SLOW_BLOCKS=1 the slow ones run too.
NEEDS = ["in a checkout", "needs a network", "needs a cluster", "needs a GPU", "needs a checkpoint"]
NEEDS += ["needs DeepSpeed", "needs TensorFlow", "needs TRL"]
SLOW = "takes half a minute"


class Block(NamedTuple):
    """A block of a page."""

    language: str | None
    code: str
    line: int
    needs: str
    """What it needs in order to run; empty if it runs anywhere."""

    @property
    def runs(self):
        """Whether the block runs here."""
        return self.needs == "" or (self.needs == SLOW and bool(os.environ.get("SLOW_BLOCKS")))


FILE_NAME = re.compile(r"# ([\w-]+\.\w+)$")
NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?([eE][+-]?\d+)?")


def blocks(page):
    """Yield the blocks of a page."""
    text = Path(page).read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        indent, needs, language, code = match.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        yield Block(language, code, text[: match.start(4)].count("\n") + 1, needs or "")


def run_page(page):
    """Run the blocks of a page, from top to bottom, in the current folder."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    printed = None
    for block in blocks(page):
        language, code, line, _ = block
        first = re.sub(r"\A#!.*\n", "", code).partition("\n")[0]
        where = f"{Path(page).name}:{line}"
        if not block.runs:
            printed = None
            continue
        if FILE_NAME.match(first):
            Path(FILE_NAME.match(first).group(1)).write_text(code, encoding="utf-8")
        elif language == "python":
            printed = captured(
                lambda code=code, line=line: run_python(page, line, code, vars(module)), where
            )
        elif language == "bash":
            printed = captured(
                lambda code=code: subprocess.run(["bash", "-euc", code], check=True), where
            )
        elif language == "output" and printed is not None:
            compare(code, printed, where)


def run_python(page, line, code, names):
    """Run Python code; tracebacks name the line of the page."""
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def captured(run, where):
    """Call `run`; returns what it printed, to stdout and stderr, and prints that too if it
    fails.
    """
    log = Path("printed.txt")
    with log.open("w+") as file:
        before = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            run()
        except BaseException:
            traceback.print_exc()
            raise SystemExit(f"{where} fails:\n{log.read_text()}") from None
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(before[0], 1)
            os.dup2(before[1], 2)
    printed = log.read_text()
    log.unlink()
    return printed


def compare(shown, printed, where):
    """Exit unless the lines that a page shows were printed, in this order; `...` stands for
    anything, and so does each number, as another CPU rounds otherwise.
    """
    lines = iter(map(without_numbers, printed.replace("\r", "\n").splitlines()))
    for line in shown.splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in without_numbers(line).split("..."))
        if line.strip() and not any(re.fullmatch(pattern, other) for other in lines):
            raise SystemExit(
                f"{where} shows a line that was not printed:\n{line}\nPrinted were:\n{printed}"
            )


def without_numbers(line):
    """A line without its numbers, and with single spaces."""
    return " ".join(NUMBER.sub("#", line).split())


def run_apart(page, folder):
    """Run a page in a child process; returns its exit status and what it wrote."""
    log = Path(f"{folder}.log")
    child = os.fork()
    if not child:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(folder)
        sys.argv[:] = ["page"]
        sys.path.insert(0, str(folder))
        status = 1
        try:
            run_page(page)
            status = 0
        except SystemExit as end:
            print(end, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, log.read_text(errors="replace")


def main():
    """Import what pages use, then run what is asked for."""
    import datasets  # noqa: F401 - for the pages
    import lightning  # noqa: F401 - for the pages
    import optuna  # noqa: F401 - for the pages
    import torch  # noqa: F401 - for the pages

    import lightrainer

    for name in lightrainer.__all__:
        getattr(lightrainer, name)
    gc.freeze()  # or each child would copy what the collector touches
    for line in sys.stdin:
        print(json.dumps(run_apart(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
