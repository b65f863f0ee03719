"""Pythons to run scripts with: this one, and one that has everything but transformers."""

import os
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

SITES = dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
LEFT_OUT = ("transformers", "transformers-")


@pytest.fixture(scope="session")
def without_library(tmp_path_factory):
    """A Python whose packages are those of this one, but for transformers: a virtual environment made of links."""
    folder = tmp_path_factory.mktemp("without") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    site = next((folder / "lib").glob("python*/site-packages"))
    for source in SITES:
        for entry in source.iterdir():
            is_library = entry.name == LEFT_OUT[0] or entry.name.startswith(LEFT_OUT[1])
            if not is_library and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def with_library():
    """This Python; LIGHTRAINER_TEST_PYTHON names another one, which has another version of transformers."""
    return os.environ.get("LIGHTRAINER_TEST_PYTHON", sys.executable)
