"""The argument `parallelism_config`: in any form, checked all at once."""

import copy
import pickle
import re
import types

import pytest

from helpers.trainer.tiny_trainings import arguments
from lightrainer.facade.arguments import parallelism
from lightrainer.facade.arguments.parallelism import ParallelismConfig

SIZES = {"dp_replicate_size": 1, "dp_shard_size": 2, "tp_size": 2}
FORMS = [SIZES, '{"dp_shard_size": 2, "tp_size": 2}', ParallelismConfig(**SIZES), "accelerate"]
FORMS += [types.SimpleNamespace(**SIZES, cp_size=None, tp_handler=None)]


@pytest.mark.parametrize("form", FORMS, ids=["dict", "json", "ours", "accelerate", "object"])
def test_parallelism_config_reads_every_form(tmp_path, form):
    if form == "accelerate":
        form = pytest.importorskip("accelerate").ParallelismConfig(dp_shard_size=2, tp_size=2)
    config = arguments(tmp_path, parallelism_config=form).parallelism_config
    assert config == ParallelismConfig(**SIZES)
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == (
        4,
        2,
        2,
    )
    assert (config.dp_replicate_enabled, config.dp_shard_enabled, config.tp_enabled) == (
        False,
        True,
        True,
    )


def test_parallelism_config_survives_copies_and_dicts(tmp_path):
    args = arguments(tmp_path, parallelism_config=SIZES)
    assert pickle.loads(pickle.dumps(args)) == copy.deepcopy(args) == args
    again = type(args)(**{**args.to_dict()})
    assert again.parallelism_config == args.parallelism_config


REFUSED = [
    ({"tp_sizes": 2}, "'tp_sizes' is not a known key. Did you mean 'tp_size'"),
    ({"tp_size": 0}, "tp_size=0 must be a whole number, at least 1"),
    ({"cp_backend": "ring"}, "cp_backend='ring' is not known. Choose from: torch"),
    ({"cp_size": 2, "sp_size": 2}, "cp_size=2 and sp_size=2 cannot be combined"),
    (
        {"dp_replicate_size": 2, "tp_size": 2},
        "set dp_shard_size above 1 and dp_replicate_size to 1",
    ),
    ("{tp_size: 2}", "is a str; pass a dict such as {'tp_size': 2}"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=str)
def test_parallelism_config_that_cannot_be_is_refused_with_what_to_do(tmp_path, config, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        arguments(tmp_path, parallelism_config=config)


@pytest.mark.parametrize(("processes", "fits"), [(1, True), (2, False), (4, True), (8, False)])
def test_sizes_are_compared_with_what_the_launcher_started(tmp_path, monkeypatch, processes, fits):
    """One process alone says nothing: the plan of a training of four can be looked at in one."""
    args = arguments(tmp_path)
    monkeypatch.setattr(parallelism, "launched_world_size", lambda: processes)
    args.parallelism_config = SIZES
    from lightrainer.facade.arguments import problems

    messages = problems(args, ["parallelism_config"])
    assert (messages == []) is fits
    if not fits:
        assert (
            f"dp_shard_size=2 * tp_size=2 needs 4 processes, but there are {processes}"
            in messages[0]
        )


def test_parallelism_config_without_a_lightning_strategy_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="dp_replicate_size=2 with tp_size=2"):
        arguments(
            tmp_path, parallelism_config={"dp_replicate_size": 2, "dp_shard_size": 2, "tp_size": 2}
        )
