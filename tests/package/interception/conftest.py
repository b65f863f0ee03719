"""Pythons to run scripts with: this one, one with the newest transformers, and one without any."""

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

SITES = dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))


def linked(folder, replaced=()):
    """A Python whose packages are those of this one, but for transformers: a virtual environment
    made of links.

    Args:
        folder: where to make it.
        replaced: files and folders of packages to be there in place of those of the same project.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    site = next((folder / "lib").glob("python*/site-packages"))
    projects = {"transformers", *(project(path) for path in replaced)}
    for source in SITES:
        for entry in source.iterdir():
            if project(entry) not in projects and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    for entry in replaced:
        (site / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


def project(entry):
    """`transformers` for the folder of that name, and for that of its metadata."""
    return entry.name.split("-")[0].split(".")[0]


@pytest.fixture(scope="session")
def without_library(tmp_path_factory):
    return linked(tmp_path_factory.mktemp("without") / "venv")


@pytest.fixture(scope="session")
def with_library():
    return sys.executable


@pytest.fixture(scope="session", params=["the reference", "the newest"])
def with_either(request, tmp_path_factory):
    """This Python, and one with the newest transformers, which the Makefile puts beside the
    other packages.
    """
    if request.param == "the reference":
        return sys.executable
    newest = Path(sys.prefix) / "newest"
    if not newest.is_dir():
        pytest.skip("the newest transformers is not installed in .venv/newest; run `make test`")
    entries = [
        entry
        for entry in newest.iterdir()
        if entry.name != "bin" and not entry.name.startswith("__")
    ]
    return linked(tmp_path_factory.mktemp("newest") / "venv", entries)
