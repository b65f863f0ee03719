"""Every block of the README and of the pages runs as printed, in an empty folder, with nothing
injected.

A block of Python or bash runs; one that begins with `# name.ext` is a file; `output` is what the
block before it prints; other languages are there to be read. A comment before a block that cannot
run here names what it needs (`<!-- run: needs a GPU -->`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import HELPERS
from helpers.processes.starting import forked_python
from helpers.scripts.page_runner import FILE_NAME, NEEDS, SLOW, blocks

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [
    page
    for folder in ("start", "user", "reference")
    for page in (ROOT / "docs" / folder).glob("*.md")
]
PAGES = sorted([ROOT / "README.md", *GUIDES])
LANGUAGES = {"python", "bash", "yaml", "json", "output", "text"}
RUN = {"python", "bash"}
WIDTH = 82


def names_of(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def has_code(page):
    return any(block.language in RUN for block in blocks(page))


@pytest.fixture(scope="module")
def runner():
    """A process with the libraries imported, and what a terminal has: the environment's commands
    on PATH.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LIGHTRAINER_", "PYTEST_"))
    }
    # Programs that pages start are forked too; the others of the environment are as they are.
    folders = [str(Path(program).parent) for program in (forked_python(), sys.executable)]
    path = os.pathsep.join([*folders, ours.get("PATH", "")])
    script = str(HELPERS / "scripts" / "page_runner.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [forked_python(), script], env={**ours, "PATH": path}, **pipes
    ) as process:
        yield process
        process.stdin.close()


def run(process, page, folder):
    """Run a page in a new folder; return its exit status and its output."""
    folder.mkdir()
    process.stdin.write(json.dumps([str(page), str(folder)]) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if has_code(page)], ids=lambda page: page.stem
)
def test_blocks_run_as_printed(runner, page, tmp_path):
    status, output = run(runner, page, tmp_path / "empty")
    assert status == 0, output


def test_blocks_all_have_a_language():
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page.name}:{block.line}"


def test_few_blocks_are_left_out():
    code = [block for page in PAGES for block in blocks(page) if block.language in RUN]
    left_out = [block for block in code if block.needs]
    assert len(code) > 60
    assert len(left_out) < len(code) / 4
    assert {block.needs for block in left_out} <= {*NEEDS, SLOW}
    assert not [block for block in left_out if FILE_NAME.match(block.code)]


def test_code_fits_the_column_of_the_site():
    wide = [
        f"{page.name}:{block.line + at}"
        for page in PAGES
        for block in blocks(page)
        if block.language in RUN
        for at, line in enumerate(block.code.splitlines())
        if len(line) > WIDTH
    ]
    assert wide == []


@pytest.mark.parametrize(
    "block", ["python\nundefined_name", "bash\nfalse", "python\nprint(1)\n```\n```output\nno"]
)
def test_blocks_failing_block_is_found(runner, block, tmp_path):
    """Negative control."""
    page = tmp_path / "page.md"
    page.write_text(f"```{block}\n```\n")
    assert run(runner, page, tmp_path / "empty")[0] != 0
