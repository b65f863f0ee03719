"""Trains the same model under several strategies, for `torchrun` or alone.

    torchrun --nproc_per_node=2 shard_script.py OUTPUT_FOLDER STRATEGY...
    python shard_script.py OUTPUT_FOLDER single

See `short_runs.train_cases`. The batch of a step is the same for
any number of processes, and no random numbers are drawn in the model, so the losses are to be the same too.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from short_runs import samples, seen, short_trainer, train_cases
from torch import nn
from torch.nn import functional

import lightrainer

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
    "fsdp1_hybrid": {"fsdp": "hybrid_shard", "fsdp_config": {**CHECKPOINTED, "backward_prefetch": "backward_pre"}},
    "fsdp2": {"fsdp": True, "fsdp_config": {"reshard_after_forward": True, "activation_checkpointing": True}},
    "fsdp2_grad": {
        "fsdp": "shard_grad_op offload",
        "fsdp_config": {"version": 2, **CHECKPOINTED, "forward_prefetch": True},
    },
    "groups": {"parallelism_config": {"dp_shard_size": 2}},
    "fsdp1_flat": {"fsdp": "shard_grad_op", "fsdp_config": {**LAYERS, "use_orig_params": False}},
    "fsdp1_other": {"fsdp": "hybrid_shard_zero2 offload", "fsdp_config": {**LAYERS, **OTHER}},
    "fsdp2_hybrid": {"fsdp": "hybrid_shard", "fsdp_config": {"version": 2, **LAYERS, "reshard_after_forward": False}},
    "fsdp1_parts": {"fsdp": "full_shard", "fsdp_config": {**LAYERS, **PARTS}},
    "fsdp2_parts": {"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS, **PARTS}},
    "fsdp1_bf16": {"fsdp": "full_shard", "fsdp_config": LAYERS, "bf16": True},
    "fsdp1_fp16": {"fsdp": "full_shard", "fsdp_config": LAYERS, "fp16": True},
    "fsdp2_fp16": {"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS}, "fp16": True},
    "fsdp2_bf16": {"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS}, "bf16": True},
}
RULES = {"blocks.*": {"layer_decay": 0.5}, "*.bias": {"lr_factor": 2, "weight_decay": 0.0}, "embed*": {"frozen": True}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "rules": {"parameter_rules": RULES},
    "muon": {"optim": "torch.optim.Muon", "parameter_rules": {"embed*": {"lr_factor": 0.5}}},
}
STRATEGIES |= {
    f"{kind}_{name}": {**STRATEGIES[kind], **more}
    for name, more in OPTIMIZERS.items()
    for kind in ("single", "ddp", "fsdp1", "fsdp2")
}
RESUMED = ("fsdp1", "fsdp2", "fsdp1_parts", "fsdp2_parts", "fsdp1_flat", "fsdp2_rules", "fsdp2_muon")


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
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "index": index}


def trainer_of(folder: Path, strategy: str, *, seed: int = 7, stop: int | None = None) -> lightrainer.Trainer:
    """See `short_trainer`; three passes."""
    # All begin with the weights of the first process, unless they are told not to.
    own_weights = not STRATEGIES[strategy].get("fsdp_config", {}).get("sync_module_states", True)
    torch.manual_seed(seed + (0 if own_weights else int(os.environ.get("RANK", "0"))))
    shares, data = int(os.environ.get("WORLD_SIZE", "1")), (samples(16, 1), samples(12, 2))
    return short_trainer(folder, Model(), data, shares=shares, stop=stop, num_train_epochs=3, **STRATEGIES[strategy])


if __name__ == "__main__":
    train_cases(Path(sys.argv[1]), sys.argv[2:], trainer_of, seen, resumed=RESUMED)
