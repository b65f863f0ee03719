"""Paths that modules had in version 0.1 are still answered, with the same classes."""

import importlib
import pickle
import sys

import pytest

import lightrainer
from lightrainer import moved


@pytest.mark.parametrize("name", moved.MODULES)
def test_every_old_path_gives_the_module_of_today(name):
    old = importlib.import_module(f"lightrainer.{name}")
    assert old is importlib.import_module(f"lightrainer.{moved.MODULES[name]}")


def test_files_of_renamed_folders_are_not_loaded_twice():
    old = importlib.import_module("lightrainer.facade.helpers.hyperparameters")
    assert old.BestRun is lightrainer.BestRun
    assert importlib.import_module("lightrainer.lightning_modules.optimizers.config").OptimizerConfig is (
        lightrainer.OptimizerConfig
    )


def test_a_pickle_of_0_1_is_read():
    now = pickle.dumps(lightrainer.IntervalStrategy.EPOCH, protocol=0)
    old = now.replace(b"lightrainer.facade.arguments.enums", b"lightrainer.facade.enums")
    assert old != now
    assert pickle.loads(old) is lightrainer.IntervalStrategy.EPOCH


def test_other_names_are_left_to_python():
    assert moved.moved_to("lightrainer.facade.trainer.base") is None
    assert moved.moved_to("facade.enums") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lightrainer.facade.enumss")
    moved.install()
    assert sum(isinstance(finder, moved.MovedModules) for finder in sys.meta_path) == 1
