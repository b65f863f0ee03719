"""Trains models that the newest transformers has spread: `spread_script.py FOLDER`; forks processes
by itself.

In each of the folders `<case>` and `single-<model>`: losses and norms, the whole model, and that of
a resumed training.
"""

import gc
import json
import math
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import peft
import torch
import transformers

from helpers.processes.forking import forked
from helpers.processes.rank_training import QUIET
from lightrainer import Trainer, TrainingArguments

CASES: dict[str, tuple[str, dict[str, int]]] = {
    "fsdp": ("llama", {"fsdp_size": 2}),
    "fsdp_lora": ("lora", {"fsdp_size": 2}),
    "tp": ("llama", {"tp_size": 2}),
    "ep": ("moe", {"fsdp_size": 2, "ep_size": 2}),
    "hsdp": ("llama", {"fsdp_size": 2, "dp_replicate_size": 2}),
    "fsdp_tp": ("llama", {"fsdp_size": 2, "tp_size": 2}),
    "ep_tp": ("moe", {"fsdp_size": 2, "tp_size": 2, "ep_size": 2}),
}
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
SMALL["max_position_embeddings"] = 32
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 16,
    "head_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


def make_models(folder: Path) -> None:
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    llama.save_pretrained(folder / "llama")
    transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SMALL, **EXPERTS)
    ).save_pretrained(folder / "moe")


def train(folder: Path, case: str, model: str, sizes: dict[str, int]) -> None:
    """Four steps with accumulation and clipping, then the last two again from the
    checkpoint.
    """
    config = import_module("transformers.distributed").DistributedConfig
    copies = sizes.get("fsdp_size", 1) * sizes.get("dp_replicate_size", 1)
    data = torch.randint(0, 64, (64, 8), generator=torch.Generator().manual_seed(3))
    for out, resume in (
        (folder / case, None),
        (folder / f"{case}-resumed", str(folder / case / "checkpoint-2")),
    ):
        distributed = {"distributed_config": config(**sizes)} if sizes else {}
        options = {
            "max_steps": 4,
            "per_device_train_batch_size": 4 // copies,
            "gradient_accumulation_steps": 2,
        }
        options |= {
            "save_steps": 2,
            "logging_steps": 1,
            "max_grad_norm": 0.1,
            "learning_rate": 1e-2,
            **QUIET,
        }
        # With a smaller epsilon the sign of rounding errors moves weights without a gradient.
        args = TrainingArguments(str(out), adam_epsilon=1e-3, **options)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            folder / model.replace("lora", "llama"), **distributed
        )
        if model == "lora":
            torch.manual_seed(int(os.environ.get("RANK", "0")))  # those of the first process count
            options = {
                "target_modules": ["q_proj", "down_proj"],
                "lora_alpha": 128,
                "init_lora_weights": False,
            }
            network = peft.get_peft_model(network, peft.LoraConfig(r=2, **options))
        trainer = Trainer(
            network, args, train_dataset=[{"input_ids": row, "labels": row} for row in data]
        )
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        if trainer.is_world_process_zero():
            record = {
                "losses": [log["loss"] for log in logs],
                "norms": [log["grad_norm"] for log in logs],
            }
            (out / "told.json").write_text(json.dumps(record))


def main(folder: Path) -> None:
    make_models(folder)
    # Processes that are forked share what is imported, as long as no collection looks at it.
    import_module("lightrainer.facade.trainer.trainer_module")
    import_module("lightrainer.facade.trainer.lightning_trainer")
    gc.collect()
    gc.freeze()
    for processes in (1, 2, 4):
        cases = (
            {f"single-{model}": (model, {}) for model in ("llama", "lora", "moe")}
            if processes == 1
            else CASES
        )
        needed = lambda sizes: math.prod(
            sizes.get(name, 1) for name in ("fsdp_size", "dp_replicate_size", "tp_size")
        )
        selected = {
            case: (model, sizes)
            for case, (model, sizes) in cases.items()
            if needed(sizes) == processes
        }

        def act(selected: dict[str, Any] = selected) -> None:
            for case, (model, sizes) in selected.items():
                train(folder, case, model, sizes)

        ended = forked(act, processes, log=folder / f"log-{processes}.txt", seconds=200)
        if any(ended.codes):
            sys.exit(ended.said[-6000:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
