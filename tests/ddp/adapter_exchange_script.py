"""Trains a model with an adapter in two processes, and resumes the checkpoints of another library.

    torchrun --nproc_per_node=2 adapter_exchange_script.py LIBRARY OUTPUT_FOLDER STRATEGY[:OTHER[:STRATEGY]]...

With another library the run starts from that one's checkpoint of the third step. The first process writes its losses to
`OUTPUT_FOLDER/LIBRARY/STRATEGY[:OTHER[:STRATEGY]]/losses.json`, and the adapter beside it, unless that is in parts.
"""

import importlib
import inspect
import json
import os
import sys
import textwrap
import warnings
from pathlib import Path

import adapter_script  # first: finds DeepSpeed
import peft
import torch
from short_runs import samples

FSDP = {"fsdp2": "FULL_STATE_DICT", "fsdp2_parts": "SHARDED_STATE_DICT"}
LAYERS = {"version": 2, "transformer_layer_cls_to_wrap": ["Block"]}
STRATEGIES = {
    **{
        name: {"fsdp": "full_shard auto_wrap", "fsdp_config": {**LAYERS, "state_dict_type": kind}}
        for name, kind in FSDP.items()
    },
    "ddp": {},
    **{name: adapter_script.STRATEGIES[name] for name in ("deepspeed2", "deepspeed3")},
}


def adapted(seed: int) -> peft.PeftModel:
    torch.manual_seed(3)
    base = adapter_script.Untied()
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=2, target_modules=["inner"], modules_to_save=["head"], init_lora_weights=False)
    return peft.get_peft_model(base, config)


def let_accelerate_shard_on_the_cpu() -> None:
    """Its FSDP works there, but is only begun on devices that it lists."""
    state = importlib.import_module("accelerate.state")
    source = textwrap.dedent(inspect.getsource(state.AcceleratorState.__init__))
    listed = "DistributedType.MULTI_GPU,"
    assert listed in source
    exec(source.replace(listed, f"{listed} DistributedType.MULTI_CPU,"), vars(state))
    state.AcceleratorState.__init__ = state.__dict__.pop("__init__")


def train(library, folder: Path, strategy: str, start: Path | None) -> None:
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_USE", "FSDP_"))]:  # of the run before
        del os.environ[name]
    if strategy in FSDP:
        os.environ["FSDP_STATE_DICT_TYPE"] = FSDP[strategy]  # the reference knows only this
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
        **STRATEGIES[strategy],
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
    if name == "transformers":
        let_accelerate_shard_on_the_cpu()
        # In several processes 5.3.0 says `cpu:0`, to which torch loads nothing.
        device = library.TrainingArguments.device
        library.TrainingArguments.device = property(lambda args: torch.device(device.fget(args).type))
    for run in runs:
        strategy, *start_of = run.split(":")
        start = folder.joinpath(*(*start_of, strategy)[:2], "checkpoint-3") if start_of else None
        train(library, folder / name / run, strategy, start)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    if sys.argv[1] == "transformers":  # it leaves threads of the process group, which may abort at the exit of Python
        sys.stdout.flush()
        os._exit(0)
