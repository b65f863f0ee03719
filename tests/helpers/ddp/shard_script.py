"""Trains the same model under several strategies, for `torchrun` or alone.

    torchrun --nproc_per_node=2 shard_script.py OUTPUT_FOLDER STRATEGY...
    python shard_script.py OUTPUT_FOLDER single
    torchrun --nproc_per_node=2 shard_script.py OUTPUT_FOLDER WRITERS:STRATEGY...

See `short_runs.train_cases`, and `written` and `compared` for `WRITERS`. The batch of a step is the
same for any number of processes, and no random numbers are drawn in the model, so the losses are to
be the same too.
"""

import errno
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import lightrainer
from helpers.ddp.short_runs import samples, seen, short_trainer, train_cases, write
from lightrainer.lightning_modules.checkpoints import sharded_files, writing

STEPS = 6
PARTS = {"state_dict_type": "SHARDED_STATE_DICT"}
LAYERS = {"transformer_layer_cls_to_wrap": ["Block"]}
CHECKPOINTED = {"min_num_params": 50, "activation_checkpointing": True}
OTHER = {"limit_all_gathers": False, "sync_module_states": False, "forward_prefetch": True}
OTHER |= {"backward_prefetch": "backward_post"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {},
    "fsdp1": {"fsdp": "full_shard", "fsdp_config": LAYERS},
    "fsdp1_hybrid": {
        "fsdp": "hybrid_shard",
        "fsdp_config": {**CHECKPOINTED, "backward_prefetch": "backward_pre"},
    },
    "fsdp2": {
        "fsdp": True,
        "fsdp_config": {"reshard_after_forward": True, "activation_checkpointing": True},
    },
    "fsdp2_grad": {
        "fsdp": "shard_grad_op offload",
        "fsdp_config": {"version": 2, **CHECKPOINTED, "forward_prefetch": True},
    },
    "groups": {"parallelism_config": {"dp_shard_size": 2}},
    "fsdp1_flat": {"fsdp": "shard_grad_op", "fsdp_config": {**LAYERS, "use_orig_params": False}},
    "fsdp1_other": {"fsdp": "hybrid_shard_zero2 offload", "fsdp_config": {**LAYERS, **OTHER}},
    "fsdp2_hybrid": {
        "fsdp": "hybrid_shard",
        "fsdp_config": {"version": 2, **LAYERS, "reshard_after_forward": False},
    },
    "fsdp1_parts": {"fsdp": "full_shard", "fsdp_config": {**LAYERS, **PARTS}},
    "fsdp2_parts": {"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS, **PARTS}},
    "fsdp1_bf16": {"fsdp": "full_shard", "fsdp_config": LAYERS, "bf16": True},
    "fsdp1_fp16": {"fsdp": "full_shard", "fsdp_config": LAYERS, "fp16": True},
    "fsdp2_fp16": {"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS}, "fp16": True},
    "fsdp2_bf16": {"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS}, "bf16": True},
}
RULES = {
    "blocks.*": {"layer_decay": 0.5},
    "*.bias": {"lr_factor": 2, "weight_decay": 0.0},
    "embed*": {"frozen": True},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "rules": {"parameter_rules": RULES},
    "muon": {"optim": "torch.optim.Muon", "parameter_rules": {"embed*": {"lr_factor": 0.5}}},
    "adafactor": {"optim": "adafactor"},
}
STRATEGIES |= {
    f"{kind}_{name}": {**STRATEGIES[kind], **more}
    for name, more in OPTIMIZERS.items()
    for kind in ("single", "ddp", "fsdp1", "fsdp2")
}
RESUMED = (
    "fsdp1",
    "fsdp2",
    "fsdp1_parts",
    "fsdp2_parts",
    "fsdp1_flat",
    "fsdp2_rules",
    "fsdp2_muon",
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x)))


class Model(nn.Module):
    """Two blocks between tied embeddings, and a buffer."""

    _no_split_modules = ["Block"]

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids, labels=None, index=None):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden) * self.scale
        if labels is None:
            return {"logits": logits}
        return {
            "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "index": index,
        }


def trainer_of(
    folder: Path, strategy: str, *, seed: int = 7, stop: int | None = None
) -> lightrainer.Trainer:
    """See `short_trainer`; three passes."""
    # All begin with the weights of the first process, unless they are told not to.
    own_weights = not STRATEGIES[strategy].get("fsdp_config", {}).get("sync_module_states", True)
    torch.manual_seed(seed + (0 if own_weights else int(os.environ.get("RANK", "0"))))
    shares, data = int(os.environ.get("WORLD_SIZE", "1")), (samples(16, 1), samples(12, 2))
    return short_trainer(
        folder, Model(), data, shares=shares, stop=stop, num_train_epochs=3, **STRATEGIES[strategy]
    )


class Writers(lightrainer.TrainerCallback):
    """Holds back the threads that write weights, or parts, until the step after that of their
    checkpoint has ended.

    Args:
        kind: what they do then, see `written`.
        threads: the number of threads for a checkpoint.
    """

    def __init__(self, kind: str, threads: int):
        self.kind, self.threads = kind, threads
        self.there: list[list[str]] = []
        """The checkpoints that there are while the threads wait, for each time."""
        self._waiting, self._gates = threading.Semaphore(0), list[threading.Event]()

    def held(self, write: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Write, after a wait if a thread does it."""
        if threading.current_thread() is not threading.main_thread():
            self._gates.append(gate := threading.Event())
            self._waiting.release()
            assert gate.wait(60)
            if (
                self.kind in FAILURES
                and os.environ["RANK"] == "1"
                and "checkpoint-2" in str(given[0].path)
            ):
                raise FAILURES[self.kind]
        return write(*given, **options)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step not in (3, 5):
            return
        assert all(self._waiting.acquire(timeout=60) for _ in range(self.threads))
        self.there.append(sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*")))
        if self.kind == "killed" and state.global_step == 5 and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        while self._gates:
            self._gates.pop().set()


FAILURES = {
    "refused": PermissionError("not yours"),
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
}


def written(folder: Path, kind: str, strategy: str) -> dict[str, Any]:
    """Write three checkpoints, and return what there was of them, and how the training ended.

    Args:
        folder: where to.
        kind: `now`, by the thread that trains; else by others, at the end of the step after:
            `later`; `alive`, without copies; `refused` or `full`, where one process cannot write
            the first one; `killed`, of which the first process is at the second one; `again`, what
            was killed.
        strategy: shards the model.
    """
    threads = 2 if strategy.endswith("parts") else int(os.environ["RANK"] == "0")
    parts, watching = sharded_files._ChecksumWriter, Writers(kind, threads)
    write_data, save_weights = parts.write_data, writing.save_weights
    copy_to_host = sharded_files.copy_to_host
    trainer = trainer_of(
        folder / ("killed" if kind == "again" else kind),
        strategy,
        seed=99 if kind == "again" else 7,
    )
    trainer.args.save_total_limit = 9
    if kind == "now":
        trainer.background_checkpoints = None
    if kind == "alive":
        sharded_files.copy_to_host = lambda state: state
    if kind not in ("now", "again"):
        trainer.add_callback(watching)
        parts.write_data = lambda *given: watching.held(write_data, *given)
        writing.save_weights = functools.partial(watching.held, save_weights)
    error = None
    try:
        trainer.train(resume_from_checkpoint=kind == "again")
    except OSError as raised:
        error = str(raised)
    finally:
        parts.write_data, writing.save_weights = write_data, save_weights
        sharded_files.copy_to_host = copy_to_host
    record = {} if error else seen(trainer, folder / kind)
    return {**record, "error": error, "step": trainer.state.global_step, "there": watching.there}


class Lacking(logging.Handler):
    """Keeps the warnings of weights that a saved model lacks."""

    def __init__(self):
        super().__init__()
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "lacks" in record.getMessage():
            self.warnings.append(record.getMessage())


class LeavesOut(lightrainer.Trainer):
    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        """Leave out a trained and a frozen weight."""
        left_out = ("blocks.0.norm.weight", "blocks.1.norm.weight")
        super()._save(
            output_dir, {name: state_dict[name] for name in state_dict if name not in left_out}
        )


def compared(folder: Path, kind: str, strategy: str) -> dict[str, Any]:
    """Train and save a model, `whole` or `incomplete`, and return the warnings of that."""
    lacking = Lacking()
    logging.getLogger("lightrainer").addHandler(lacking)
    trainer = trainer_of(folder, strategy, stop=2)
    if kind == "incomplete":
        trainer.__class__ = LeavesOut
    trainer.model.blocks[1].norm.weight.requires_grad_(False)
    trainer.train()
    trainer.save_model(str(folder / "saved"))
    logging.getLogger("lightrainer").removeHandler(lacking)
    return {"warnings": lacking.warnings}


if __name__ == "__main__" and ":" in sys.argv[2]:
    for case in sys.argv[2:]:
        kind, _, strategy = case.partition(":")
        if kind in ("whole", "incomplete"):
            found = compared(Path(sys.argv[1], strategy, kind), kind, strategy)
        else:
            found = written(Path(sys.argv[1], strategy), kind, strategy)
        write(Path(sys.argv[1]), case, found)
elif __name__ == "__main__":
    train_cases(Path(sys.argv[1]), sys.argv[2:], trainer_of, seen, resumed=RESUMED)
