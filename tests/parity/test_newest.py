"""Some of these tests once more, against the newest transformers; `make test-newest` runs all of
them against it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes.starting import SERVERS

HERE = Path(__file__).parent
NEWEST = Path(sys.prefix) / "newest"
"""Folder in which `make` installs it."""
FILES = (
    "adapters",
    "accumulation",
    "events",
    "logging",
    "evaluation",
    "evaluation_options",
)
FILES += ("optimization", "data")
SWITCHED = (
    "label_smoothing_factor or full_eval or group_by_length or eval_steps or reduce_lr_on_plateau"
)
"""Rows of the table of arguments whose numbers depend on the version."""


@pytest.mark.skipif(
    bool(os.environ.get("LIGHTRAINER_FOLLOW")),
    reason="this run already compares with that version",
)
@pytest.mark.skipif(
    not NEWEST.is_dir(), reason="the newest transformers is not installed separately; run `make`"
)
def test_newest_version_is_followed_bit_for_bit():
    """In one process: in this one, another version is imported already."""
    (info,) = NEWEST.glob("transformers-*.dist-info")
    version = re.fullmatch(r"transformers-(.*)\.dist-info", info.name)[1]
    files = [str(HERE / f"test_{name}.py") for name in FILES]
    chosen = f"not test_arguments_effects or effect_is_that and ({SWITCHED})"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--no-header",
        "-k",
        chosen,
    ]
    # Processes that others are forked from have imported the reference.
    environment = {name: value for name, value in os.environ.items() if name != SERVERS}
    outcome = subprocess.run(
        [*command, *files, str(HERE / "test_arguments_effects.py")],
        env={**environment, "LIGHTRAINER_FOLLOW": version, "PYTHONPATH": str(NEWEST)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stdout[-5000:] + outcome.stderr[-2000:]
