"""What resumes exactly with what under plain Lightning: the table of docs/user/lightning.md,
made by resuming.
"""

import json
import sys
from pathlib import Path

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks
from helpers.promises.resumption_walk import PLACES, SETTINGS, table_row, walk
from lightrainer.lightning_modules.internals import lightning_internals

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).parents[2] / "docs" / "user" / "lightning.md"
CHOICE = ["a dict of streams"]
"""Rows of `make test`; tests/lightning_modules/tasks resumes at every place, too."""
WITH_DEEPSPEED = ["DeepSpeed ZeRO 2", "DeepSpeed ZeRO 2 and `accumulate_grad_batches=4`"]
needs_deepspeed = pytest.mark.skipif(
    not (Path(sys.prefix) / "deepspeed").is_dir(),
    reason="deepspeed is not installed separately; run `make test`",
)
REST = [
    pytest.param(name, marks=needs_deepspeed) if name in WITH_DEEPSPEED else name
    for name in SETTINGS
    if name not in CHOICE
]

HEADER = "| | " + " | ".join(PLACES) + " |"


def rows_of_page() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADER)
    end = lines.index("", start)
    return lines[start + 2 : end]


def row_of(name: str, folder: Path) -> str:
    setting = SETTINGS[name]
    if setting.processes == 1:
        with lightning_internals.quiet():
            return table_row(name, walk(setting, folder))
    library = "lightrainer and deepspeed" if name in WITH_DEEPSPEED else "lightrainer"
    options = {
        "log": folder / "log.txt",
        "seconds": 1800,
        "processes": setting.processes,
        "library": library,
    }
    finished_ranks(HELPERS / "promises" / "resumption_script.py", name, str(folder), **options)
    return json.loads((folder / "row.json").read_text())


@pytest.mark.parametrize("name", CHOICE)
def test_resumption_is_as_the_table_says(tmp_path, name):
    assert row_of(name, tmp_path) in rows_of_page()


def test_table_has_every_setting():
    assert [row.split(" | ")[0] for row in rows_of_page()] == [f"| {name}" for name in SETTINGS]
    assert "differs silently" not in PAGE.read_text(encoding="utf-8")


@pytest.mark.promises
@pytest.mark.parametrize("name", REST)
def test_resumption_of_every_setting_is_as_the_table_says(tmp_path, name):
    assert row_of(name, tmp_path) in rows_of_page()
