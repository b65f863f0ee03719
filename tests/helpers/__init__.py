"""What tests import besides the package: trainings, comparisons, servers, and scripts to start.

Tests, their fixtures (`conftest.py`) and the files that they compare with are in the folders that
mirror the code; every other module is here, in a folder by subject, and is imported by its full
name: `from helpers.trainer.tiny_trainings import arguments`. A file whose name ends with `_script`
is started as a separate process, by its path `HELPERS / "folder" / "file.py"`, with `TESTS` on
PYTHONPATH; `helpers.processes.starting` does both.
"""

from pathlib import Path

HELPERS = Path(__file__).resolve().parent
TESTS = HELPERS.parent
