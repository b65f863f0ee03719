"""What all tests share: each finds the package's logger, and Ctrl-C, as a fresh process in the
foreground has them.
"""

import contextlib
import functools
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

# A shell has its background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes with a GPU are forked from one that has imported transformers, which asks for the number
# of GPUs. Where torch asks CUDA for it, and not NVML, no forked process can use CUDA any more.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# Python closes the queues of a loader that is left in a reference cycle, as after an exception, before
# the loader asks its workers to end. torch then waits this long for each of them, 5 seconds by default.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2

SERVERS = "LIGHTRAINER_TESTS_SERVERS"


def pytest_configure(config):
    """All workers of a run share the processes that others are forked from: see
    `tests/helpers/processes/starting.py`.

    And a folder for temporary files, as killed processes, torchrun and others leave theirs behind.
    """
    if config.getoption("--pretended"):
        _pretend(config)
    if SERVERS in os.environ:
        return
    default_folder, folder = tempfile.gettempdir(), tempfile.mkdtemp(prefix="tests-")
    changes = pytest.MonkeyPatch()
    changes.setenv("TMPDIR", folder)
    changes.setenv(SERVERS, os.path.join(folder, "forking"))
    # the folders of tests stay where pytest keeps those of three runs
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        changes.setenv("PYTEST_DEBUG_TEMPROOT", default_folder)
    changes.setattr(tempfile, "tempdir", folder)
    config.add_cleanup(lambda: (changes.undo(), shutil.rmtree(folder, ignore_errors=True)))


def _pretend(config):
    """Pretend a CUDA device for the whole run, unless there is one; programs that tests start
    have no pretended one.
    """
    from helpers.devices.pretended_cuda import pretended_device, use_real_device

    if torch.cuda.is_available():
        use_real_device()
        return
    stack = contextlib.ExitStack()
    stack.enter_context(pretended_device())
    config.add_cleanup(stack.close)


def pytest_addoption(parser):
    """`--soak 500`: 500 kills in tests/faults, instead of about eighty; `--pretended`: see
    `_pretend`.
    """
    parser.addoption(
        "--soak",
        type=int,
        default=0,
        metavar="KILLS",
        help="kill trainings so often (tests/faults)",
    )
    parser.addoption(
        "--pretended", action="store_true", help="train on a CUDA device, pretended where none is"
    )


@pytest.fixture(autouse=True)
def _device_for_gpu_tests(request):
    """A test marked `gpu` has a real device, or else a pretended one."""
    if request.node.get_closest_marker("gpu") is None or torch.cuda.is_available():
        yield
        return
    from helpers.devices.pretended_cuda import pretended_device

    with pretended_device():
        yield


@pytest.fixture(autouse=True)
def _tf32_as_before():
    """On a GPU both libraries turn TF32 on for compiled models; the reference in a way that
    Lightning cannot read.
    """
    yield
    from helpers.devices.pretended_cuda import pretended

    if torch.cuda.is_available() and pretended() is None:
        if hasattr(torch.backends, "fp32_precision"):
            torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True)
def _fresh_logger():
    """A Trainer sets the level that its arguments ask for, and it stays set, also that of a
    fixture of a module.
    """
    logger = logging.getLogger("lightrainer")
    handlers = list(logger.handlers)
    # to set it takes long: what all loggers remember is emptied then
    if logger.level != logging.NOTSET:
        logger.setLevel(logging.NOTSET)
    yield
    if logger.level != logging.NOTSET:
        logger.setLevel(logging.NOTSET)
    logger.handlers[:] = handlers


@pytest.fixture(autouse=True)
def _seeds_of_lightning():
    """`seed_everything` leaves them in the environment, where processes of later tests would
    find them.
    """
    yield
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return one worker more than there are cores, as many tests wait for programs that they
    have started.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) + 1
    return None  # xdist counts the cores


LONGEST = (
    "deepspeed_runs",
    "ddp/test_splitting.py",
    "parity/test_newest.py",
    "promises/test_user_code.py",
    "promises/test_walk.py",
    "examples/test_scripts.py",
    "package/test_sweep.py",
    "ddp",
    "nodes",
    "faults",
    "package/interception",
    "facade/checkpointing",
    "parity/test_arguments_effects.py",
    "examples",
    "callbacks/loggers",
)
"""Files whose tests wait for programs and processes."""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Looking for what can be freed, again and again, takes a quarter of the time in which tests
    are collected.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


ASKED_FOR = ("libraries", "nodes", "promises")
"""Marks of tests that take minutes; `make test-libraries`, `make test-nodes` and
`make test-promises` ask for them.
"""


def pytest_collection_modifyitems(config, items):
    _leave_out_unless_asked_for(config, items)
    _put_longest_first(items)


def _leave_out_unless_asked_for(config, items):
    """Leave out the tests with each of the marks that `-m` does not name."""
    expression = config.getoption("markexpr") or ""
    marks = [mark for mark in ASKED_FOR if mark not in expression]
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in marks)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _put_longest_first(items):
    """The longest files first: at the end, where the workers have to come out even, small ones
    are left to deal out.
    """
    places = [Path(__file__).parent / name for name in LONGEST]

    @functools.cache
    def rank(path):
        return next(
            (n for n, place in enumerate(places) if place in (path, *path.parents)), len(places)
        )

    items.sort(key=lambda item: rank(item.path))


def pytest_collection_finish(session):
    """Thirteen thousand tests are a million objects, which every `gc.collect()` of theirs would
    look at again.
    """
    _leave_out_of_collections()


def pytest_runtest_setup(item):
    _skip_without_hardware(item)
    # The libraries that were imported since then are left out, too.
    if len(sys.modules) > _left_out:
        _leave_out_of_collections()


def _skip_without_hardware(item):
    """Skip a test whose subject a pretended device cannot have, before its fixtures are made."""
    from helpers.devices.pretended_cuda import pretended

    gpu = item.get_closest_marker("gpu")
    has_hardware = torch.cuda.is_available() and pretended() is None
    if gpu is not None and "needs" in gpu.kwargs and not has_hardware:
        pytest.skip(f"a pretended device has no {gpu.kwargs['needs']}")

    cpu_only = item.get_closest_marker("cpu_only")
    if cpu_only is not None and item.config.getoption("--pretended"):
        (reason,) = cpu_only.args
        pytest.skip(f"not on a device: {reason}")


_left_out = 0
"""So many modules were there when what they hold was last left out."""


def _leave_out_of_collections():
    global _left_out
    _left_out = len(sys.modules)
    gc.collect()
    gc.freeze()
