"""Optimizers of other libraries, trained for real with both: same bits. Skipped where a library
is not installed.
"""

from importlib.util import find_spec

import pytest
import torch

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import Case, assert_parity, assert_same, run
from helpers.parity.parity_datasets import point_data
from helpers.parity.parity_models import Classifier

ALL_LINEAR = {"optim_target_modules": "all-linear"}
# What the reference shows of another schedule it does not apply to the layers, see below.
CONSTANT = {"lr_scheduler_type": "constant"}

LIBRARIES = {
    "schedule_free_adamw": (
        "schedulefree",
        {"weight_decay": 0.1, "warmup_steps": 3, "optim_args": "r=0.5"},
    ),
    "schedule_free_radam": ("schedulefree", {"weight_decay": 0.1, "adam_beta2": 0.99}),
    "schedule_free_sgd": ("schedulefree", {"optim_args": "weight_lr_power=1.0"}),
    "stable_adamw": (
        "optimi",
        {"weight_decay": 1e-4, "optim_args": "decouple_lr=true,max_lr=0.1"},
    ),
    "grokadamw": ("grokadamw", {"optim_args": "lamb=1.5,gamma=0.2"}),
    "adamw_torch_8bit": ("torchao", {"weight_decay": 0.1, "adam_beta2": 0.99}),
    "adamw_torch_4bit": ("torchao", {"weight_decay": 0.1}),
    "adamw_bnb_8bit": ("bitsandbytes", {"weight_decay": 0.1}),
    "paged_adamw_32bit": ("bitsandbytes", {"weight_decay": 0.1}),
    "lion_32bit": ("bitsandbytes", {"weight_decay": 0.1}),
    "lion_8bit": ("bitsandbytes", {}),
    "ademamix": ("bitsandbytes", {"optim_args": "alpha=4,t_alpha=8,t_beta3=8"}),
    "ademamix_8bit": ("bitsandbytes", {}),
    "rmsprop_bnb": ("bitsandbytes", {}),
    "rmsprop_bnb_8bit": ("bitsandbytes", {}),
    "lomo": ("lomo_optim", {"gradient_accumulation_steps": 2}),
    "adalomo": ("lomo_optim", {}),
    "galore_adamw": ("galore_torch", {**ALL_LINEAR, "optim_args": "rank=2,update_proj_gap=3"}),
    "galore_adafactor": (
        "galore_torch",
        {"optim_target_modules": ["first"], "optim_args": "rank=2,scale=0.5"},
    ),
    "galore_adamw_8bit": (
        "galore_torch",
        {"optim_target_modules": "sec.*", "optim_args": "rank=2"},
    ),
    "galore_adamw_layerwise": (
        "galore_torch",
        {**ALL_LINEAR, **CONSTANT, "optim_args": "rank=2,update_proj_gap=2"},
    ),
    "apollo_adamw": ("apollo_torch", {**ALL_LINEAR, "optim_args": "rank=2"}),
    "apollo_adamw_layerwise": (
        "apollo_torch",
        {"optim_target_modules": [".*st"], **CONSTANT, "optim_args": "rank=2"},
    ),
}


NEED_CUDA = ("adalomo", "galore_adamw_8bit")

WARNINGS = (
    "ignore:`torch.cuda.amp.autocast:FutureWarning",
    "ignore:CUDA is not available or torch_xla is imported:UserWarning",
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    "ignore:Paged optimizers are not supported on CPU:UserWarning",
    "ignore:This implementation of AdamW is deprecated:FutureWarning",
)
quiet = pytest.mark.filterwarnings(*WARNINGS)


def require(name):
    library, _ = LIBRARIES[name]
    pytest.importorskip(library)
    if name in NEED_CUDA and not torch.cuda.is_available():
        pytest.skip(f"{library} needs a GPU for {name}")
    if library == "optimi" and find_spec("triton") and not torch.cuda.is_available():
        pytest.skip(
            "torch-optimi steps with triton wherever that is installed, and without a GPU triton "
            "fails"
        )


@quiet
@pytest.mark.parametrize("name", LIBRARIES)
def test_library_optimizer_trains_as_in_the_reference(reference, ours, tmp_path, name):
    require(name)
    library, arguments = LIBRARIES[name]
    case = Case(
        Classifier,
        point_data,
        {"optim": name, "eval_strategy": "steps", "eval_steps": 3, **arguments},
    )
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert type(actual.trainer.optimizer).__module__.split(".")[0] in (library, "lightrainer")


@quiet
@pytest.mark.parametrize("name", LIBRARIES)
def test_library_optimizer_resumption_is_exact(ours, tmp_path, name):
    """Also where the reference cannot read what it wrote (GaLore, APOLLO), or saves no state
    (layerwise, GrokAdamW).
    """
    require(name)
    arguments = {**LIBRARIES[name][1], "optim": name, "lr_scheduler_type": "linear"}
    case = Case(Classifier, point_data, {**arguments, "save_strategy": "steps", "save_steps": 4})
    straight = run(ours, case, tmp_path)
    resumed = run(ours, case.but(model_seed=99), tmp_path, resume=str(tmp_path / "checkpoint-4"))
    for result in (straight, resumed):
        result.history[-1].pop("train_loss")
    assert_same(straight, resumed, ignoring=("output",))


@quiet
@pytest.mark.parametrize(
    "name", ["schedule_free_adamw", "stable_adamw", "adamw_torch_8bit", "adamw_bnb_8bit"]
)
@pytest.mark.parametrize("direction", ["theirs resumed by ours", "ours resumed by theirs"])
def test_checkpoints_are_exchanged(reference, ours, tmp_path, name, direction):
    require(name)
    case = Case(
        Classifier,
        point_data,
        {**LIBRARIES[name][1], "optim": name, "save_strategy": "steps", "save_steps": 4},
    )
    straight = run(reference, case, tmp_path / "straight")
    first, second = (
        reference if side == "theirs" else ours for side in direction.split(" resumed by ")
    )
    run(first, case, tmp_path / "first")
    resumed = run(
        second,
        case.but(model_seed=99),
        tmp_path / "second",
        resume=str(tmp_path / "first/checkpoint-4"),
    )
    for result in (straight, resumed):
        result.history[-1].pop("train_loss")
    assert_same(straight, resumed, ignoring=("output",))


@quiet
def test_layerwise_is_the_plain_optimizer_without_clipping(ours, tmp_path):
    """At the rates of the schedule, which the reference shows but does not apply to the layers."""
    require("galore_adamw")
    arguments = {
        **LIBRARIES["galore_adamw"][1],
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "cosine",
    }
    # Without dropout: making a layerwise optimizer draws a number, as in the reference.
    case = Case(lambda: Classifier(dropout=0.0), point_data, arguments)
    names = ("galore_adamw", "galore_adamw_layerwise")
    plain, layerwise = (
        run(ours, case.but(arguments={"optim": name}), tmp_path / name) for name in names
    )
    assert not differences(plain.weights, layerwise.weights)
    rates = [
        [entry.get("learning_rate") for entry in result.history] for result in (plain, layerwise)
    ]
    assert rates[0] == rates[1]
