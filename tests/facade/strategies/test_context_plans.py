"""Context parallel before it runs: what the plan is, and what is refused before anything is
written.
"""

import re
import types

import pytest
from torch import nn

from helpers.trainer.four_processes import of_four
from helpers.trainer.tiny_trainings import Tiny, arguments, make_trainer
from lightrainer.facade.arguments.parallelism import (
    ContextParallelConfig,
    ParallelismConfig,
    SequenceParallelConfig,
)
from lightrainer.facade.strategies.plan import translate


class Causal(nn.Module):
    _no_split_modules = ["Linear"]

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, input_ids, position_ids=None, labels=None, shift_labels=None):
        return self.layer(input_ids)


def plan_of(folder, groups, **changes):
    return translate(of_four(folder, parallelism_config=groups, **changes), model=Causal()).strategy


def test_context_plan_is_shown(tmp_path):
    """The model is sharded over all that share sequences, also where `fsdp` says nothing."""
    plan = plan_of(
        tmp_path,
        {"cp_size": 2, "dp_shard_size": 2, "cp_handler": {"cp_comm_strategy": "alltoall"}},
    )
    assert (plan.name, plan.shards_weights) == ("ContextParallelStrategy", True)
    assert plan.options["data_parallel_size"] == 4
    shown = {(maps_to, value) for _, maps_to, value in plan.rows()}
    assert ("context_parallel()", "context_parallel_size=2, rotation=alltoall") in shown
    assert any(maps_to == "fully_shard()" and "shard=full" in value for maps_to, value in shown)


def test_heads_are_sharded(tmp_path):
    """Another strategy, over the same grid; `dp_shard_size` and `tp_size` go with it."""
    plan = plan_of(tmp_path, {"sp_size": 2, "dp_shard_size": 2})
    assert (plan.name, plan.shards_weights) == ("SequenceParallelStrategy", True)
    assert ("ulysses_attention()", "sequence_parallel_size=2") in {row[1:] for row in plan.rows()}
    for groups, name in (
        ({"sp_size": 2, "tp_size": 2}, "SequenceParallel"),
        ({"cp_size": 2}, "ContextParallel"),
    ):
        built = plan_of(tmp_path, groups).build()
        assert (type(built).__name__, built.context_parallel_size) == (f"{name}Strategy", 2)
    assert built.rotation == "allgather"


@pytest.mark.parametrize("theirs", [False, True])
def test_context_plan_reads_the_reference_rules_for_heads(tmp_path, theirs):
    handler: object = {"sp_seq_length": 8, "sp_seq_length_is_variable": False}
    if theirs:
        handler = pytest.importorskip("accelerate.utils").DeepSpeedSequenceParallelConfig(8, False)
    config = arguments(
        tmp_path, parallelism_config={"sp_size": 2, "sp_handler": handler}
    ).parallelism_config
    assert config == ParallelismConfig(sp_size=2, sp_handler=SequenceParallelConfig(8, False))


@pytest.mark.parametrize(
    "handler",
    [
        {"cp_comm_strategy": "alltoall"},
        types.SimpleNamespace(cp_comm_strategy="alltoall"),
        "theirs",
    ],
    ids=["dict", "object", "accelerate"],
)
def test_context_plan_reads_every_form_of_a_handler(tmp_path, handler):
    if handler == "theirs":
        handler = pytest.importorskip("accelerate.utils").TorchContextParallelConfig(
            cp_comm_strategy="alltoall"
        )
    args = arguments(tmp_path, parallelism_config={"cp_size": 2, "cp_handler": handler})
    assert args.parallelism_config == ParallelismConfig(
        cp_size=2, cp_handler=ContextParallelConfig("alltoall")
    )
    assert type(args)(**args.to_dict()).parallelism_config == args.parallelism_config


REFUSED = [
    (
        {"sp_handler": {"sp_attn_implementation": "flash_attention_2"}},
        {},
        "sp_attn_implementation='flash_attention_2'",
    ),
    ({"sp_handler": 3}, {}, "sp_handler=3 must be a dict"),
    (
        {"sp_size": 2},
        {"deepspeed": {"zero_optimization": {"stage": 3}}},
        "deepspeed and parallelism_config cannot be combined: DeepSpeed forms its own groups. "
        "Use one. For sp_size remove deepspeed",
    ),
    (
        {"sp_size": 2, "dp_replicate_size": 2},
        {},
        "sp_size=2 needs a sharded model: set dp_shard_size above 1",
    ),
    (
        {"cp_handler": {"cp_comm_strategy": "allgathre"}},
        {},
        "'allgathre' is not known. Did you mean 'allgather'",
    ),
    ({}, {"fsdp": "full_shard"}, "parallelism_config needs version 2 of FSDP"),
    (
        {},
        {"torch_compile": True},
        "torch_compile=True and parallelism_config with cp_size=2, sp_size=1 cannot be combined",
    ),
]


def test_heads_that_processes_cannot_share_are_refused_before_the_run(tmp_path):
    model = Causal()
    model.config = types.SimpleNamespace(num_attention_heads=6)
    args = of_four(tmp_path, parallelism_config={"sp_size": 4})
    with pytest.raises(ValueError, match="sp_size=4: Causal has 6 attention heads"):
        translate(args, model=model).strategy.check(args, model)


@pytest.mark.parametrize(
    ("groups", "changes", "message"), REFUSED, ids=[message[:40] for *_, message in REFUSED]
)
def test_context_plan_that_cannot_be_is_refused_with_what_to_do(tmp_path, groups, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        arguments(
            tmp_path,
            parallelism_config=groups if "sp" in str(groups) else {"cp_size": 2, **groups},
            **changes,
        )


TOO_FEW_GPUS = (
    r"cp_size above 1( needs GPUs|: the context_parallel of torch 2\.\S+ is not supported)"
)


def test_models_that_cannot_be_trained_on_parts_are_refused_before_the_run(tmp_path):
    args = of_four(tmp_path, parallelism_config={"cp_size": 4})
    with pytest.raises(
        ValueError, match=r"cp_size=4: Tiny\.forward has no parameter 'position_ids'"
    ) as error:
        translate(args, model=Tiny()).strategy.check(args, Tiny())
    assert "Use dp_shard_size instead" in str(error.value)
    # Of torch versions without its ring attention another error tells which one has it.
    with pytest.raises((ValueError, NotImplementedError), match=TOO_FEW_GPUS):
        translate(args, model=Causal()).strategy.check(args, Causal())
    shared_by_heads = of_four(tmp_path, parallelism_config={"sp_size": 4})
    translate(shared_by_heads, model=Causal()).strategy.check(shared_by_heads, Causal())


def test_shifted_labels_are_made_of_labels_and_do_not_have_to_be_in_the_data(tmp_path):
    assert make_trainer(
        tmp_path, model=Causal(), parallelism_config={"cp_size": 2}
    ).label_names == ["labels"]
