"""Each training argument has the reference's effect, bit for bit, wherever a CPU can show it."""

import dataclasses
from typing import Any

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.argument_effects import ROWS, Row
from helpers.parity.harness import Run, assert_same, run
from lightrainer.lightning_modules.common import seeding

NOT_COMPARED = {
    "output_dir, run_name, project, trackio_space_id, report_to, logging_dir": (
        "where results go, and to whom"
    ),
    "disable_tqdm, log_level, log_level_replica, log_on_each_node": "what is logged, by which rank",
    "skip_memory_metrics": "figures of the machine",
    "save_on_each_node, ddp_find_unused_parameters, ddp_bucket_cap_mb, ddp_broadcast_buffers, ddp_backend, ddp_timeout,fsdp, fsdp_config, deepspeed, parallelism_config, local_rank": (
        "several processes"
    ),
    "push_to_hub, hub_token, hub_private_repo, hub_model_id, hub_strategy, hub_always_push, hub_revision": (
        "a network"
    ),
    "do_train, do_eval, do_predict, resume_from_checkpoint": "scripts read them",
    "tf32, dataloader_pin_memory": "a GPU",
    "fp16": "the reference has it on a GPU only; see test_precision.py",
    "torch_compile_mode": "modes of a compiler that takes a minute; this one is handed on",
    "use_liger_kernel, liger_kernel_config, optim_target_modules": (
        "a library; see test_library_optimizers.py"
    ),
    "enable_jit_checkpoint": "a signal to the process",
}


GONE = {"warmup_ratio", "logging_dir"}
"""Fields of 5.3 that 5.15 does not have any more."""
ADDED_LATER = {
    "activation_checkpointing, activation_checkpointing_kwargs": (
        "another name of gradient_checkpointing"
    ),
    "trackio_static_space_id, trackio_bucket_id": "where results go",
    "dataloader_multiprocessing_context, dataloader_in_order": (
        "how workers start, and which of them is waited for"
    ),
    "ddp_static_graph": "several processes",
    "record_model_losses, eval_aggregate, parameter_rules": "the reference has no such argument",
    "max_tokens_per_batch": "the reference has no such argument",
}
"""Fields of versions after 5.3.0, and of lightrainer alone, that the table leaves out."""
REASONS = NOT_COMPARED, ADDED_LATER

OURS_ALONE = ("data_state", "_manifest")


@pytest.fixture
def _as_before(monkeypatch):
    """The settings of `full_determinism` for the whole process are reverted."""
    for name in seeding.DETERMINISTIC_ENVIRONMENT:
        monkeypatch.setenv(name, "")  # so that it is as before at the end
        monkeypatch.delenv(name)
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch._dynamo.reset()
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def outcome(api, row: Row, arguments, folder) -> Run:
    case = row.case(**arguments)
    if row.resume is None:
        return run(api, case, folder)
    run(api, case.but(arguments={"save_strategy": "steps", "save_steps": row.resume}), folder)
    return run(api, case, folder, resume=str(folder / f"checkpoint-{row.resume}"))


def files(result: Run) -> set[str]:
    """The documented files of all checkpoints; ours have a few more beside them."""
    paths = [
        path
        for path in result.folder.glob("checkpoint-*/*")
        if not path.name.startswith(OURS_ALONE)
    ]
    return {str(path.relative_to(result.folder)) for path in paths}


_controls: dict[str, tuple[dict[str, Any], set[str]]] = {}


def control(api, row: Row, folder) -> tuple[dict[str, Any], set[str]]:
    """Results without the arguments in question; many rows share a control."""
    key = repr(dataclasses.replace(row, arguments={}, changes=True))
    if key not in _controls:
        result = outcome(api, row, {}, folder)
        _controls[key] = result.compared(), files(result)
    return _controls[key]


# From 5.23 on `activation_checkpointing` is the name.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
# The reference wraps a tensor into a tensor to count tokens, and torch tells it so.
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning:transformers")
# Starting worker processes from a process with threads is what the loader does; Python 3.12 and
# later warn about it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_argument_effect_equals_the_reference(reference, ours, tmp_path, row):
    """Losses, gradient norms, rates, metrics, predictions, weights and generators; and the
    control without it.
    """
    if row.arguments.keys() & GONE - fields(reference):
        pytest.skip(f"transformers {reference.__version__} does not have it any more")
    expected = outcome(reference, row, row.arguments, tmp_path / "reference")
    actual = outcome(ours, row, row.arguments, tmp_path / "ours")
    assert_same(expected, actual)
    assert files(expected) == files(actual)
    baseline, baseline_files = control(ours, row, tmp_path / "usual")
    mismatches = differences(baseline, actual.compared())
    assert bool(mismatches or baseline_files != files(actual)) is row.changes, mismatches


def test_arguments_are_in_the_table_or_have_a_reason(reference):
    compared = {name for row in ROWS for name in row.arguments}
    excused, later = (
        {name.strip() for names in table for name in names.split(",")} for table in REASONS
    )
    assert not compared & excused
    assert not compared & later
    available = fields(reference)
    assert available <= compared | excused | later
    assert (compared | excused) - available <= GONE


def fields(api) -> set[str]:
    return {item.name for item in dataclasses.fields(api.TrainingArguments)}
