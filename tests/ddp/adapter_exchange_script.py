"""Trains a model with an adapter in two processes, and resumes the checkpoints of another library.

    torchrun --nproc_per_node=2 adapter_exchange_script.py LIBRARY OUTPUT_FOLDER STRATEGY[:OTHER LIBRARY]...

With another library the run starts from that one's checkpoint of the third step. The first process writes its losses to
`OUTPUT_FOLDER/LIBRARY/STRATEGY[:OTHER LIBRARY]/losses.json`, and the adapter beside it.
"""

import importlib
import json
import os
import sys
import warnings
from pathlib import Path

import adapter_script  # first: finds DeepSpeed
import peft
import torch
from short_runs import samples

STRATEGIES = {
    "fsdp2": {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Block"]},
    },
    **{name: adapter_script.STRATEGIES[name] for name in ("deepspeed2", "deepspeed3")},
}


def adapted(seed: int) -> peft.PeftModel:
    torch.manual_seed(3)
    base = adapter_script.Untied()
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=2, target_modules=["inner"], modules_to_save=["head"], init_lora_weights=False)
    return peft.get_peft_model(base, config)


def train(library, folder: Path, strategy: str, start: Path | None) -> None:
    on_cpu_by_ddp = strategy == "fsdp2" and library.__name__ == "transformers"  # accelerate has no FSDP on the CPU
    args = library.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=6,
        save_steps=3,
        logging_steps=1,
        learning_rate=3e-2,
        max_grad_norm=0.5,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **({} if on_cpu_by_ddp else STRATEGIES[strategy]),
    )
    trainer = library.Trainer(model=adapted(99 if start else 7), args=args, train_dataset=samples(32, 1))
    trainer.train(resume_from_checkpoint=None if start is None else str(start))
    trainer.save_model(str(folder / "saved"))
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (folder / "losses.json").write_text(json.dumps(losses))


def main(name: str, folder: Path, runs: list[str]) -> None:
    warnings.filterwarnings("ignore")
    library = importlib.import_module(name)
    if name == "transformers" and "BESIDE" in os.environ:  # gloo does it; compiling it may wait for a lock for ever
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    if name == "transformers":  # in several processes 5.3.0 says `cpu:0`, to which torch loads nothing
        device = library.TrainingArguments.device
        library.TrainingArguments.device = property(lambda args: torch.device(device.fget(args).type))
    for run in runs:
        strategy, _, other = run.partition(":")
        start = folder / other / strategy / "checkpoint-3" if other else None
        train(library, folder / name / run, strategy, start)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    if sys.argv[1] == "transformers":  # it leaves threads of the process group, which may abort at the exit of Python
        sys.stdout.flush()
        os._exit(0)
