"""The number formats that the model computes in."""

from dataclasses import dataclass, field


@dataclass(init=False, repr=False, eq=False)
class PrecisionArguments:
    """The fields of `transformers.TrainingArguments` that choose number formats."""

    bf16: bool = field(
        default=False,
        metadata={
            "help": "Compute in bfloat16 where that is safe, with weights in float32 (mixed precision).",
            "becomes": "`Trainer(precision='bf16-mixed')`",
        },
    )
    fp16: bool = field(
        default=False,
        metadata={
            "help": "Compute in float16 where that is safe, with loss scaling; bf16 needs no scaling.",
            "becomes": "`Trainer(precision='16-mixed')`, with a `GradScaler`",
        },
    )
    bf16_full_eval: bool = field(
        default=False,
        metadata={
            "help": "Evaluate with the weights themselves cast to bfloat16.",
            "becomes": "`model.to(torch.bfloat16)` for evaluations outside of a training",
        },
    )
    fp16_full_eval: bool = field(
        default=False,
        metadata={
            "help": "Evaluate with the weights themselves cast to float16.",
            "becomes": "`model.to(torch.float16)` for evaluations outside of a training",
        },
    )
    tf32: bool | None = field(
        default=None,
        metadata={
            "help": "Let float32 products run as TF32 on Ampere and newer GPUs; unset leaves torch as it is.",
            "becomes": "`torch.set_float32_matmul_precision()`",
        },
    )
