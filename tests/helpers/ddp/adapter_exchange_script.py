"""Trains a model in two processes, and resumes the checkpoints of another library.

    torchrun --nproc_per_node=2 adapter_exchange_script.py LIBRARY OUTPUT_FOLDER
    CASE[:OTHER[:CASE]]...

A case is a strategy, and `-plain` for a model without adapters: with DeepSpeed it has one of them,
otherwise two. With another library the run starts from that one's checkpoint of the third step. The
first process writes its losses to `OUTPUT_FOLDER/LIBRARY/CASE[:OTHER[:CASE]]/losses.json`, and the
model beside it, unless that is in parts.
"""

import copy
import importlib
import inspect
import json
import os
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

from helpers.ddp import adapter_script  # first: finds DeepSpeed

# isort: split
import peft
import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from helpers.ddp.short_runs import samples

FORMS = {"": "FULL_STATE_DICT", "_parts": "SHARDED_STATE_DICT"}
FSDP = {
    f"fsdp{version}{name}": (version, form) for version in (1, 2) for name, form in FORMS.items()
}
LAYERS = {"transformer_layer_cls_to_wrap": ["Block"]}
DEVICELESS = {"sync_module_states": False, "cpu_ram_efficient_loading": False}


def options_of(strategy: str, library: str, adapted: bool) -> dict[str, Any]:
    if strategy not in FSDP:
        return {} if strategy == "ddp" else adapter_script.STRATEGIES[strategy]
    version, form = FSDP[strategy]
    os.environ["FSDP_STATE_DICT_TYPE"] = form  # the reference knows only this
    config = {"version": version, "state_dict_type": form, **(DEVICELESS if version == 1 else {})}
    if version == 1 and adapted and library != "lightrainer":
        # Where layers are wrapped, PEFT 0.21 finds none of their weights, and writes empty
        # adapters.
        os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = ""
        return {"fsdp": "full_shard", "fsdp_config": config}
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": {**config, **LAYERS}}


def model_of(strategy: str, seed: int, adapted: bool) -> torch.nn.Module:
    torch.manual_seed(3 if adapted else seed)
    base = adapter_script.Untied()
    if not adapted:
        return base
    torch.manual_seed(seed)
    # Under version 1 the first process of the reference would gather the head without the other
    # one, and hang.
    head = None if strategy.startswith("fsdp1") else ["head"]
    config = peft.LoraConfig(
        r=2, target_modules=["inner"], modules_to_save=head, init_lora_weights=False
    )
    model = peft.get_peft_model(base, config)
    if not strategy.startswith("deepspeed"):
        model.add_adapter("ref", config)
    return model


def let_accelerate_shard_on_the_cpu() -> None:
    """Its FSDP works there, but version 2 is only begun on devices that it lists, and version 1
    fails on their names.

    What it reads and writes is left alone.
    """
    state = importlib.import_module("accelerate.state")
    source = textwrap.dedent(inspect.getsource(state.AcceleratorState.__init__))
    listed = "DistributedType.MULTI_GPU,"
    assert listed in source
    exec(source.replace(listed, f"{listed} DistributedType.MULTI_CPU,"), vars(state))
    state.AcceleratorState.__init__ = state.__dict__.pop("__init__")
    wrap, state_dict_type = (
        FullyShardedDataParallel.__init__,
        FullyShardedDataParallel.state_dict_type,
    )

    def wrap_on_cpu(self, *args, device_id, **options):
        """With `cpu`: it is told `cpu:0`, which differs from the device of the weights."""
        wrap(self, *args, device_id=torch.device(device_id.type), **options)

    def state_dict_type_on_cpu(module, kind, *configs):
        """Without offloading: from the CPU to the CPU torch crashes."""
        configs = [copy.copy(config) for config in configs]
        for config in filter(None, configs):
            config.offload_to_cpu = False
        return state_dict_type(module, kind, *configs)

    FullyShardedDataParallel.__init__ = wrap_on_cpu
    FullyShardedDataParallel.state_dict_type = staticmethod(state_dict_type_on_cpu)


def train(library, folder: Path, case: str, start: Path | None) -> None:
    strategy, adapted = case.removesuffix("-plain"), not case.endswith("-plain")
    # of the run before
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_USE", "FSDP_"))]:
        del os.environ[name]
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "max_steps": 6,
        "save_steps": 3,
    }
    options |= {
        "logging_steps": 1,
        "learning_rate": 3e-2,
        "max_grad_norm": 0.5,
        "report_to": "none",
    }
    options |= {
        "disable_tqdm": True,
        "use_cpu": True,
        **options_of(strategy, library.__name__, adapted),
    }
    args, data = library.TrainingArguments(**options), samples(32, 1)
    trainer = library.Trainer(
        model=model_of(strategy, 99 if start else 7, adapted), args=args, train_dataset=data
    )
    trainer.train(resume_from_checkpoint=None if start is None else str(start))
    trainer.save_model(str(folder / "saved"))
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (folder / "losses.json").write_text(json.dumps(losses))


def main(name: str, folder: Path, runs: list[str]) -> None:
    warnings.filterwarnings("ignore")
    library = importlib.import_module("transformers" if name == "newest" else name)
    # gloo does it; compiling it may wait for a lock for ever
    if name == "transformers" and "BESIDE" in os.environ:
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    if name != "lightrainer":
        let_accelerate_shard_on_the_cpu()
        # In several processes 5.3.0 says `cpu:0`, to which torch loads nothing.
        device = library.TrainingArguments.device
        library.TrainingArguments.device = property(
            lambda args: torch.device(device.fget(args).type)
        )
    for run in runs:
        case, *start_of = run.split(":")
        start = folder.joinpath(*(*start_of, case)[:2], "checkpoint-3") if start_of else None
        train(library, folder / name / run, case, start)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    # it leaves threads of the process group, which may abort at the exit of Python
    if sys.argv[1] != "lightrainer":
        sys.stdout.flush()
        os._exit(0)
