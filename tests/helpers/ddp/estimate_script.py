"""Measure memory and traffic of two ranks, for `torchrun`, to compare the estimates with.

    torchrun --nproc_per_node=2 estimate_script.py lightrainer estimates OUTPUT_FOLDER

Each training of `CASES` is three steps of the Trainer; the third is recorded by torch's profiler,
which sees the size of each collective. Tensor parallelism is done with torch alone. Writes
`estimates-rank<rank>.json`.
"""

import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

import lightrainer
from helpers.processes.rank_training import QUIET
from lightrainer.lightning_modules.common.dtensor import local_shard

CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "vocab_size": 96,
    "use_cache": False,
}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
BATCH, SEQUENCE = 2, 16
FULL_SHARD, GRAD_OP = (
    {"fsdp": f"{kind} auto_wrap", "fsdp_config": {"version": 2}}
    for kind in ("full_shard", "shard_grad_op")
)
EACH_BATCH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp accumulated": {"gradient_accumulation_steps": 3},
    "ddp bf16": {"bf16": True},
    "full_shard": FULL_SHARD,
    "full_shard accumulated": {**FULL_SHARD, "gradient_accumulation_steps": 3},
    "full_shard bf16": {**FULL_SHARD, "bf16": True},
    "shard_grad_op": GRAD_OP,
    "shard_grad_op, each batch": {
        **GRAD_OP,
        "gradient_accumulation_steps": 2,
        "accelerator_config": EACH_BATCH,
    },
    "full_shard, sp": {**FULL_SHARD, "parallelism_config": {"sp_size": 2}},
    "full_shard, version 1": {
        **FULL_SHARD,
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    },
}
COLLECTIVES = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::allgather_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::reduce_scatter_": "reduce-scatter",
    "c10d::alltoall_base_": "all-to-all",
}
WIDTHS = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "int": 4, "long int": 8, "double": 8}
SMALL = 64  # numbers: norms, losses, sums over the rows of a batch


def size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in map(local_shard, tensors))


def collectives(prof: profile) -> dict[str, int]:
    """Bytes of the whole tensors of each kind of collective, without those of a few numbers.

    The raw records are read: processing all of them with torch takes longer than the training.
    """
    sizes = dict.fromkeys(COLLECTIVES.values(), 0)
    kind = None
    records: Any = prof.profiler
    for event in sorted(records.kineto_results.events(), key=lambda event: event.start_ns()):
        name = event.name()
        if name in COLLECTIVES:
            kind = COLLECTIVES[name]
        # what this process gives, or for sums: all of it
        elif name.startswith("gloo:all_") and kind is not None:
            (shape, *_), (dtype, *_) = event.shapes(), event.dtypes()
            number = torch.Size(shape).numel() * (2 if kind == "all-gather" else 1)
            sizes[kind] += number * WIDTHS[dtype] if number > SMALL else 0
            kind = None
    return sizes


class Record(lightrainer.TrainerCallback):
    """Watches the third step."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.prof = profile(activities=[ProfilerActivity.CPU], record_shapes=True)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.prof.start()

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.seen["gradients"] = size(p.grad for p in model.parameters() if p.grad is not None)

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step != 3:
            return
        self.prof.stop()
        self.seen |= collectives(self.prof)
        objects = [] if args.fsdp else gc.get_objects()
        for wrapper in (
            candidate for candidate in objects if type(candidate) is DistributedDataParallel
        ):
            self.seen["buckets"] = sum(
                map(int, wrapper._get_ddp_logging_data()["bucket_sizes"].split(","))
            )
        self.seen["parameters"] = size(model.parameters())
        inner = getattr(optimizer, "optimizer", optimizer)
        values = [
            value
            for each in inner.state.values()
            for value in each.values()
            if isinstance(value, torch.Tensor)
        ]
        self.seen["optimizer"] = size(value for value in values if value.numel() > 1)


def train(folder: Path, case: str) -> dict[str, Any]:
    options = {
        "per_device_train_batch_size": BATCH,
        "max_steps": 3,
        "save_strategy": "no",
        **QUIET,
    }
    options |= {"ddp_timeout": 100, "ddp_find_unused_parameters": False, **CASES[case]}
    args = lightrainer.TrainingArguments(str(folder / "out"), **options)
    torch.manual_seed(0)
    record = Record()
    rows = torch.randint(CONFIG["vocab_size"], (64, SEQUENCE))
    samples = [{"input_ids": row, "labels": row} for row in rows]
    trainer = lightrainer.Trainer(
        LlamaForCausalLM(LlamaConfig(**CONFIG)), args, train_dataset=samples
    )
    trainer.add_callback(record)
    trainer.train()
    return record.seen


def tensor_parallel() -> dict[str, Any]:
    """Megatron's layout of the same model, with torch alone; the last layer's output is reduced
    as well.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    plan: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(use_local_output=False),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        for name in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        ):
            plan[f"model.layers.{layer}.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"model.layers.{layer}.{name}"] = RowwiseParallel()
    parallelize_module(model, mesh, plan)
    ids = torch.randint(CONFIG["vocab_size"], (BATCH, SEQUENCE))
    prof = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    with loss_parallel(), prof:
        logits = model(input_ids=ids).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    return {"parameters": size(model.parameters()), **collectives(prof)}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    record = {case: train(folder, case) for case in CASES}
    record["tensor parallel"] = tensor_parallel()
    (folder / f"estimates-rank{os.environ['RANK']}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[3]))
