"""Optimizers of other libraries that need nothing but their numbers; GaLore and APOLLO are in `low_rank`."""

from __future__ import annotations

from ..common.suggestions import OptimizerNames
from .arguments import dtype, flag
from .optional import Library, MissingLibraryError
from .request import ClassAndKwargs, OptimizerRequest

XLA = Library(package="torch_xla", pip="torch_xla", needs="a TPU")
NPU = Library(package="torch_npu", pip="torch_npu", needs="an Ascend NPU")
APEX = Library(package="apex", pip="git+https://github.com/NVIDIA/apex --no-build-isolation", needs="an NVIDIA GPU")
TORCHDISTX = Library(package="torchdistx", pip="git+https://github.com/pytorch/torchdistx")
TORCHAO = Library(package="torchao>=0.4", pip="'torchao>=0.11'")
SCHEDULE_FREE = Library(package="schedulefree>=1.4", pip="'schedulefree>=1.4'")
GROKADAMW = Library(package="grokadamw", pip="grokadamw")
OPTIMI = Library(package="torch-optimi", pip="torch-optimi")
LOMO = Library(package="lomo-optim", pip="lomo-optim")


def xla(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_torch_xla`."""
    (adamw,) = XLA.load(request.name, "torch_xla.amp.syncfree", "AdamW")
    return adamw, request.adam


def npu(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_torch_npu_fused`."""
    (adamw,) = NPU.load(request.name, "torch_npu.optim", "NpuFusedAdamW")
    return adamw, request.adam


def apex(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_apex_fused`."""
    (adam,) = APEX.load(request.name, "apex.optimizers", "FusedAdam")
    return adam, request.adam


def any_precision(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_anyprecision`."""
    (adamw,) = TORCHDISTX.load(request.name, "torchdistx.optimizers", "AnyPrecisionAdamW")
    take = request.arguments.take
    return adamw, {
        **request.adam,
        "use_kahan_summation": take("use_kahan_summation", flag, False),
        "momentum_dtype": take("momentum_dtype", dtype, dtype("float32")),
        "variance_dtype": take("variance_dtype", dtype, dtype("float32")),
        "compensation_buffer_dtype": take("compensation_buffer_dtype", dtype, dtype("bfloat16")),
    }


def torchao(request: OptimizerRequest) -> ClassAndKwargs:
    """`adamw_torch_4bit` and `adamw_torch_8bit`."""
    member = "AdamW4bit" if request.name is OptimizerNames.ADAMW_TORCH_4BIT else "AdamW8bit"
    try:
        (adamw,) = TORCHAO.load(request.name, "torchao.optim", member)
    except MissingLibraryError as error:
        try:
            (adamw,) = TORCHAO.load(request.name, "torchao.prototype.low_bit_optim", member)  # before 0.11
        except MissingLibraryError:
            raise error from None
    take = request.arguments.take
    blocks, rounding = take("block_size", int, 256), take("bf16_stochastic_round", flag, False)
    return adamw, {"block_size": blocks, "bf16_stochastic_round": rounding, **request.adam}


def schedule_free(request: OptimizerRequest) -> ClassAndKwargs:
    """`schedule_free_adamw`, `schedule_free_radam` and `schedule_free_sgd`, which warm up by themselves."""
    member = {
        OptimizerNames.SCHEDULE_FREE_RADAM: "RAdamScheduleFree",
        OptimizerNames.SCHEDULE_FREE_ADAMW: "AdamWScheduleFree",
        OptimizerNames.SCHEDULE_FREE_SGD: "SGDScheduleFree",
    }[request.name]
    (optimizer,) = SCHEDULE_FREE.load(request.name, "schedulefree", member)
    kwargs = {} if request.name is OptimizerNames.SCHEDULE_FREE_SGD else request.adam
    if request.name is not OptimizerNames.SCHEDULE_FREE_RADAM:
        kwargs["warmup_steps"] = request.config.warmup_steps or 0
    take = request.arguments.take
    own = {"weight_lr_power": take("weight_lr_power", float, 2.0), "r": take("r", float, 0.0)}
    return optimizer, {**kwargs, "weight_decay": request.config.weight_decay, **own}


def grokadamw(request: OptimizerRequest) -> ClassAndKwargs:
    """`grokadamw`, whose betas and epsilon are its own, as in the reference."""
    (optimizer,) = GROKADAMW.load(request.name, "grokadamw", "GrokAdamW")
    defaults = {
        "alpha_init": 0.98,
        "lamb": 2.0,
        "gamma": 0.1,
        "grokking_signal_decay_rate": 0.1,
        "gradient_clipping": 1.0,
    }
    return optimizer, {name: request.arguments.take(name, float, value) for name, value in defaults.items()}


def stable_adamw(request: OptimizerRequest) -> ClassAndKwargs:
    """`stable_adamw`; "kahan_sum=false" means false, where the reference reads every text as true."""
    (optimizer,) = OPTIMI.load(request.name, "optimi", "StableAdamW")
    take = request.arguments.take
    return optimizer, {
        **request.adam,
        "weight_decay": request.config.weight_decay,
        "decouple_lr": take("decouple_lr", flag, False),
        "max_lr": take("max_lr", float, None),
        "kahan_sum": take("kahan_sum", flag, None),
    }


def lomo(request: OptimizerRequest) -> ClassAndKwargs:
    """`lomo` and `adalomo`, which take the model; they step in the backward pass, see `fused`."""
    model = request.require_model()
    (optimizer,) = LOMO.load(request.name, "lomo_optim", "Lomo" if request.name is OptimizerNames.LOMO else "AdaLomo")
    return optimizer, {"model": model}
