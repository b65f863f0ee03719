"""The training arguments that callbacks read, as a type."""

from __future__ import annotations

from typing import Any, Protocol


class CallbackArguments(Protocol):
    """Type of `args` in the events of the callbacks of this package.

    `TrainingArguments` have all of these attributes, and so have the `BridgeArguments` of a
    `LightningBridge`. Attributes that may be missing are read by `getattr` with a default.
    """

    output_dir: str
    run_name: str | None
    load_best_model_at_end: bool
    metric_for_best_model: str | None
    greater_is_better: bool | None

    logging_strategy: str
    logging_steps: float
    logging_first_step: bool

    eval_strategy: str
    eval_steps: float | None
    eval_delay: float

    save_strategy: str
    save_steps: float
    save_total_limit: int | None
    resume_from_checkpoint: str | None

    bf16: bool
    fp16: bool
    torch_compile: bool
    dataloader_num_workers: int

    project: str
    trackio_space_id: str | None
    trackio_bucket_id: str | None
    hub_private_repo: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return all arguments, tokens masked."""
        ...

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return all arguments as numbers and text, for tables of hyperparameters."""
        ...
