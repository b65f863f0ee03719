"""Trainings that are reported to the real client of a tracker, which works without a network."""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

import lightrainer
from helpers.loggers.reported_training import SECRET, make_trainer


def needs(module: str, extra: str = "loggers") -> pytest.MarkDecorator:
    """Skip where a client is not installed."""
    is_installed = importlib.util.find_spec(module) is not None
    return pytest.mark.skipif(
        not is_installed, reason=f"needs {module}: pip install lightrainer[{extra}]"
    )


def train_both(
    folder: Path, report_to: str, then: Callable[[Any], Any] = lambda made: None, **changes: Any
) -> None:
    """Train with the reference and with ours, each in its own folder."""
    for api in (transformers, lightrainer):
        where = folder / api.__name__
        where.mkdir()
        with inside(where):
            trainer = make_trainer(api, where / "out", report_to=report_to, **changes)
            trainer.train()
            then(trainer)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def files_with_the_secret(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
