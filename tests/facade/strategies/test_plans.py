"""Arguments become strategies of Lightning: which one, with which options, and built for real."""

import datetime

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

from helpers.trainer.four_processes import of_four
from helpers.trainer.tiny_trainings import Tiny, files, make_trainer
from lightrainer.__main__ import main
from lightrainer.facade.strategies.plan import translate
from lightrainer.facade.strategies.wrapping import layers_of

CHOSEN = [
    ({}, "DDPStrategy"),
    ({"fsdp": "full_shard"}, "FSDPStrategy"),
    ({"fsdp": True}, "ModelParallelStrategy"),
    ({"fsdp": "full_shard", "fsdp_config": {"version": 2}}, "ModelParallelStrategy"),
    ({"fsdp": "full_shard", "fsdp_config": {"xla": True}}, "SingleDeviceXLAStrategy"),
    ({"deepspeed": {"zero_optimization": {"stage": 1}}}, "DeepSpeedStrategy"),
    ({"parallelism_config": {"dp_replicate_size": 4}}, "DDPStrategy"),
    ({"parallelism_config": {"dp_shard_size": 2, "tp_size": 2}}, "ModelParallelStrategy"),
]


@pytest.mark.parametrize(("changes", "name"), CHOSEN, ids=str)
def test_fsdp_plan_chooses_the_requested_strategy(tmp_path, changes, name):
    plan = translate(of_four(tmp_path, **changes))
    assert plan.strategy.name == name
    assert plan.accelerator == ("tpu" if name == "SingleDeviceXLAStrategy" else "cpu")
    assert name in repr(plan)


WORDS = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "no_shard": ShardingStrategy.NO_SHARD,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
    "hybrid_shard_zero2": ShardingStrategy._HYBRID_SHARD_ZERO2,
}


@pytest.mark.parametrize("word", WORDS)
def test_words_become_torchs_strategies(tmp_path, word):
    strategy = translate(of_four(tmp_path, fsdp=word)).strategy
    built = strategy.build()
    assert isinstance(built, FSDPStrategy)
    assert built.sharding_strategy is WORDS[word]
    assert built.kwargs.get("device_mesh") == ((2, 2) if "hybrid" in word else None)
    assert strategy.shards_weights is (word != "no_shard")


OPTIONS = [
    ({"fsdp": "full_shard offload"}, lambda built: built.cpu_offload.offload_params, True),
    (
        {"fsdp_config": {"backward_prefetch": "backward_pre"}},
        "backward_prefetch",
        BackwardPrefetch.BACKWARD_PRE,
    ),
    ({}, "backward_prefetch", None),
    ({"fsdp_config": {"forward_prefetch": True}}, "forward_prefetch", True),
    ({"fsdp_config": {"limit_all_gathers": False}}, "limit_all_gathers", False),
    ({"fsdp_config": {"use_orig_params": False}}, "use_orig_params", False),
    ({"fsdp_config": {"sync_module_states": False}}, "sync_module_states", False),
    ({"ddp_backend": "gloo"}, lambda built: built.process_group_backend, "gloo"),
    ({"ddp_timeout": 7}, lambda built: built._timeout, datetime.timedelta(seconds=7)),
]


@pytest.mark.parametrize(("changes", "look", "expected"), OPTIONS)
def test_fsdp_plan_passes_options_of_version_1(tmp_path, changes, look, expected):
    built = translate(of_four(tmp_path, **{"fsdp": "full_shard", **changes})).strategy.build()
    assert (built.kwargs[look] if isinstance(look, str) else look(built)) == expected


class Named(nn.Module):
    _no_split_modules = ["Linear", "LayerNorm"]

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(2, 2), nn.LayerNorm(2)


LAYERS = [
    ("full_shard", {}, None),
    ("full_shard auto_wrap", {}, {"layers": ["Linear", "LayerNorm"]}),
    ("full_shard", {"transformer_layer_cls_to_wrap": ["Linear"]}, {"layers": ["Linear"]}),
    ("full_shard auto_wrap", {"min_num_params": 5}, {"min_num_params": 5}),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("words", "config", "expected"), LAYERS, ids=str)
def test_layers_are_chosen(tmp_path, words, config, expected, version):
    """The model is asked where the arguments do not name them."""
    args = of_four(tmp_path, fsdp=words, fsdp_config={"version": version, **config})
    options = translate(args, model=Named()).strategy.options
    assert options["auto_wrap_policy" if version == 1 else "layers"] == expected


def test_layers_are_chosen_by_name_and_by_size(tmp_path):
    def chosen(config):
        args = of_four(tmp_path, fsdp="full_shard auto_wrap", fsdp_config=config)
        options = translate(args, model=Named()).strategy.options
        return sorted(layers_of(options["auto_wrap_policy"], Named()))

    assert chosen({}) == ["first", "norm"]
    assert chosen({"transformer_layer_cls_to_wrap": ["LayerNorm"]}) == ["norm"]
    assert chosen({"min_num_params": 5}) == ["first"]


def test_activations_are_computed_again_in_the_same_layers(tmp_path):
    config = {"transformer_layer_cls_to_wrap": ["Linear"], "activation_checkpointing": True}
    options = translate(of_four(tmp_path, fsdp="full_shard", fsdp_config=config)).strategy.options
    assert (
        options["activation_checkpointing_policy"]
        == options["auto_wrap_policy"]
        == {"layers": ["Linear"]}
    )
    plain = translate(of_four(tmp_path, fsdp="full_shard")).strategy.options
    assert plain["activation_checkpointing_policy"] is None


SECOND = {"fsdp_config": {"version": 2}}
GRIDS = [
    (
        {"fsdp": "full_shard", **SECOND},
        (4, 1),
        {"replicate_size": 1, "reshard_after_forward": True},
    ),
    ({"fsdp": "hybrid_shard", **SECOND}, (4, 1), {"replicate_size": 2}),
    ({"fsdp": "full_shard offload", **SECOND}, (4, 1), {"offload": True}),
    (
        {"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}},
        (4, 1),
        {"replicate_size": 2},
    ),
    ({"parallelism_config": {"dp_shard_size": 2, "tp_size": 2}}, (2, 2), {"shard": "full_shard"}),
    (
        {"parallelism_config": {"tp_size": 4}},
        (1, 4),
        {"shard": None, "layers": None, "offload": None},
    ),
    (
        {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}},
        (4, 1),
        {"offload": False},
    ),
    ({"fsdp": "full_shard", **SECOND, "bf16": True}, (4, 1), {"param_dtype": "bfloat16"}),
]


@pytest.mark.parametrize(("changes", "sizes", "expected"), GRIDS, ids=str)
def test_grids_of_processes(tmp_path, changes, sizes, expected):
    """Two machines of two processes: hybrid sharding keeps a copy on each."""
    strategy = translate(of_four(tmp_path, **changes)).strategy
    assert (
        strategy.options["data_parallel_size"],
        strategy.options["tensor_parallel_size"],
    ) == sizes
    assert {name: strategy.options.get(name) for name in expected} == expected
    built = strategy.build()
    assert isinstance(built, ModelParallelStrategy)
    assert (built._data_parallel_size, built._tensor_parallel_size) == sizes
    assert built._save_distributed_checkpoint is (
        "state_dict_type" in changes.get("fsdp_config", {})
    )


@pytest.mark.parametrize(
    "words", [["--fsdp", "full_shard auto_wrap"], ["--parallelism_config", '{"tp_size": 2}']]
)
def test_fsdp_plan_on_the_command_line_of_one_process(words, capsys):
    assert main(["plan", "--use_cpu", *words]) == 0
    assert (
        "FSDPStrategy" if "--fsdp" in words else "tensor_parallel_size=2"
    ) in capsys.readouterr().out


REFUSED_RUNS = [
    ({"fsdp": "full_shard"}, ValueError, "start the script with torchrun"),
    ({"parallelism_config": {"dp_replicate_size": 2}}, ValueError, "torchrun --nproc_per_node=2"),
    ({"parallelism_config": {"tp_size": 2}}, ValueError, "torchrun --nproc_per_node=2"),
    (
        {"fsdp": "full_shard", "fsdp_config": {"xla": True}},
        NotImplementedError,
        "on devices of torch_xla",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "message"), REFUSED_RUNS, ids=str)
def test_fsdp_plan_that_cannot_run_is_refused_by_name(tmp_path, changes, kind, message):
    """Never silently another strategy; before anything is written."""
    trainer = make_trainer(tmp_path / "out", **changes)
    assert trainer.plan.strategy.name in repr(trainer.plan)
    for run in (trainer.train, trainer.evaluate, lambda: trainer.predict(trainer.eval_dataset)):
        with pytest.raises(kind) as error:
            run()
        assert message in str(error.value)
    assert files(tmp_path) == []


@pytest.mark.parametrize("version", [1, 2])
def test_layers_that_the_model_does_not_have_are_refused(tmp_path, version):
    config = {"version": version, "transformer_layer_cls_to_wrap": ["Linaer"]}
    args, model = of_four(tmp_path, fsdp="full_shard", fsdp_config=config), Tiny()
    with pytest.raises(
        ValueError, match=r"'Linaer' is not a module of Tiny\. Did you mean 'Linear'"
    ):
        translate(args, model=model).strategy.check(args, model)


def test_fsdp_plan_warns_of_a_model_without_named_layers(tmp_path, caplog):
    args, model = of_four(tmp_path, fsdp="full_shard auto_wrap"), Tiny()
    translate(args, model=model).strategy.check(args, model)
    assert "Tiny does not name its layers" in caplog.text


ENGINES = [{"fsdp": "full_shard"}, {"deepspeed": {"zero_optimization": {"stage": 2}}}]
ENGINES += [{"parallelism_config": {"tp_size": 2}}, {"parallelism_config": {"dp_shard_size": 2}}]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_optimizers_cannot_be_passed_together_with_sharding(tmp_path, engine):
    """As in the reference: it replaces the parameters."""
    model = Tiny()
    with pytest.raises(
        RuntimeError, match=f"optimizers cannot be passed together with {next(iter(engine))}"
    ):
        make_trainer(
            tmp_path, model=model, optimizers=(torch.optim.SGD(model.parameters()), None), **engine
        )


def test_libraries_are_told(tmp_path):
    trainer = make_trainer(tmp_path, fsdp="full_shard")
    assert (trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled, trainer.is_fsdp_xla_enabled) == (
        True,
        False,
        False,
    )
    assert trainer.place_model_on_device is False
    assert make_trainer(tmp_path).place_model_on_device is True
