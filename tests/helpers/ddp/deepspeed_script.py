"""Trains one model under DeepSpeed in many ways, for `torchrun` or alone; DeepSpeed is in the
folder $BESIDE.

    torchrun --nproc_per_node=2 deepspeed_script.py LIBRARY OUTPUT_FOLDER WAY...

Every rank writes what it saw of each way to `OUTPUT_FOLDER/WAY-<processes>-rank<rank>.json`. The
batch of a step is the same for any number of processes.
"""

import copy
import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

# last: only what is missing is taken there
sys.path.append(os.environ["BESIDE"])
ON_CPU = os.environ.get("DEVICE", "cpu") == "cpu"
if ON_CPU:
    os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")

import torch

from helpers.ddp.shard_script import Model
from helpers.ddp.short_runs import samples
from helpers.processes.rank_training import QUIET

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
FILLED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
ADAM = {
    "type": "AdamW",
    "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto") | {"torch_adam": True},
}
WARMUP = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
SCHEDULE = {"type": "WarmupDecayLR", "params": dict.fromkeys(WARMUP, "auto")}
CPU = {"device": "cpu"}
GATHER = "stage3_gather_16bit_weights_on_model_save"


def zero(stage: int, more: Any = None, **section: Any) -> dict[str, Any]:
    """A configuration, with everything "auto" that can be."""
    if stage == 3:  # small parameters would stay whole
        section = {"stage3_param_persistence_threshold": 0, **section}
    return {
        **dict.fromkeys(FILLED, "auto"),
        "zero_optimization": {"stage": stage, **section},
        **(more or {}),
    }


# They agree with the arguments; with one process a step has to take twice as many batches.
STATED = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
LOW_SCALE = {"enabled": "auto", "initial_scale_power": 4}  # at which nothing overflows
SECTIONS = {"optimizer": ADAM, "scheduler": SCHEDULE}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stage0": {"deepspeed": zero(0)},
    "stage1": {"deepspeed": zero(1)},
    "stage2": {"deepspeed": zero(2)},
    "stage3": {"deepspeed": zero(3)},
    "overlap1": {"deepspeed": zero(1, overlap_comm=True)},
    "passes0": {"deepspeed": zero(0)},
    "passes1": {"deepspeed": zero(1)},
    "passes2": {"deepspeed": zero(2)},
    "passes3": {"deepspeed": zero(3)},
    "passes_offload2": {"deepspeed": zero(2, offload_optimizer=CPU)},
    "offload2": {"deepspeed": zero(2, offload_optimizer=CPU, round_robin_gradients=True)},
    "offload3": {"deepspeed": zero(3, offload_optimizer=CPU, offload_param=CPU)},
    "silent": {"deepspeed": {"zero_optimization": {"stage": 1}}},
    "parts": {"deepspeed": zero(3, **{GATHER: False})},
    "numbers": {
        "deepspeed": {"zero_optimization": {"stage": 2}, **STATED},
        "per_device_train_batch_size": 2,
    },
    "sections": {"deepspeed": zero(2, SECTIONS)},
    "its_schedule": {"deepspeed": zero(3, {"scheduler": SCHEDULE})},
    "its_optimizer": {"deepspeed": zero(2, {"optimizer": ADAM})},
    "bf16": {"deepspeed": zero(2, {"bf16": {"enabled": "auto"}}), "bf16": True},
    "bf16_3": {"deepspeed": zero(3), "bf16": True},
    "fp16": {
        "deepspeed": zero(2, {"fp16": {"enabled": "auto", "initial_scale_power": 24}}),
        "fp16": True,
    },
    "fp16_3": {"deepspeed": zero(3), "fp16": True},
    "fp16_low": {"deepspeed": zero(2, {"fp16": LOW_SCALE}), "fp16": True},
    "fp16_low_3": {"deepspeed": zero(3, {"fp16": LOW_SCALE}), "fp16": True},
    "unclipped": {"deepspeed": zero(2), "max_grad_norm": 0.0},
    "plain_unclipped": {"max_grad_norm": 0.0},
}
RESUMED = ("stage2", "stage3", "offload3", "parts", "sections", "bf16", "fp16_low")


class Counted(Model):
    """Gives its predictions as the reference wants them, too."""

    def forward(self, ids: Any, labels: Any = None, index: Any = None) -> Any:
        return {"loss": super().forward(ids, labels)["loss"], "index": index}


def watcher(library: Any, stop: int | None) -> Any:
    """A callback that counts what it hears, and may end the training in the middle with a
    checkpoint.
    """

    class Watcher(library.TrainerCallback):
        def __init__(self) -> None:
            self.heard: dict[str, int] = {}

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.heard["steps"] = self.heard.get("steps", 0) + 1
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == stop:  # as if it had been killed
                control.should_save = control.should_evaluate = False

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.heard["saves"] = self.heard.get("saves", 0) + 1

    return Watcher()


def several_passes(library: Any) -> Any:
    """Return a Trainer whose step runs several forward and backward passes, with the same loss."""

    class SeveralPasses(library.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            inputs = self._prepare_inputs(inputs)
            whole = torch.zeros(())
            # Outside of the engine, as in losses that call `self.model`, and through it.
            for part, network in ((0.5, self.model), (0.25, model), (0.25, self.model)):
                loss = part * network(**inputs)["loss"] / self.current_gradient_accumulation_steps
                self.accelerator.backward(loss)
                whole += loss.detach()
            return whole

    return SeveralPasses


def trainer_of(
    library: Any, folder: Path, way: str, *, seed: int = 7, stop: int | None = None, **changes: Any
) -> Any:
    """20 samples in batches of 4, three of them a step, so that a pass has a shorter second
    step.
    """
    options = {
        "per_device_train_batch_size": 4 // PROCESSES,
        "per_device_eval_batch_size": 2,
        "learning_rate": 3e-2,
    }
    options |= {
        "gradient_accumulation_steps": 3,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
        "num_train_epochs": 3,
    }
    options |= {
        "warmup_steps": 2,
        "logging_steps": 1,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
    }
    options |= {
        "save_total_limit": 2,
        "load_best_model_at_end": stop is None,
        "metric_for_best_model": "loss",
    }
    options["greater_is_better"] = True  # so that the best is the first, not the last
    options |= {
        **QUIET,
        "use_cpu": ON_CPU,
        "ddp_timeout": 60,
        **copy.deepcopy(WAYS[way]),
        **changes,
    }
    torch.manual_seed(seed)
    trainer_class = several_passes(library) if way.startswith("passes") else library.Trainer
    trainer = trainer_class(
        model=Counted(),
        args=library.TrainingArguments(str(folder), **options),
        train_dataset=samples(20, 1),
        eval_dataset=samples(12, 2),
        callbacks=[watcher(library, stop)],
    )
    trainer.remove_callback(library.PrinterCallback)
    return trainer


def history(trainer: Any) -> dict[str, Any]:
    """Return what was logged."""
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    return {
        name: [entry[name] for entry in trainer.state.log_history if name in entry]
        for name in names
    }


def seen(trainer: Any, folder: Path) -> dict[str, Any]:
    """Evaluate, predict and save the model again; return what a rank saw of the training."""
    metrics = trainer.evaluate()
    predictions = trainer.predict(trainer.eval_dataset).predictions
    trainer.save_model(str(folder / "saved"))
    return {
        **history(trainer),
        "strategy": trainer.plan.strategy.name,
        "last_eval_loss": metrics["eval_loss"],
        "predicted": [int(number) for number in predictions],
        "best": trainer.state.best_global_step,
        "numel": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "heard": dict(trainer.callback_handler.callbacks[-1].heard),
        "made": [
            type(component).__name__
            for component in (trainer.optimizer, trainer.lr_scheduler, trainer.deepspeed)
        ],
    }


def refusal(action: Any) -> str:
    """Return the error of an action that must fail."""
    try:
        action()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def of_way(library: Any, folder: Path, way: str) -> dict[str, Any]:
    folder = folder / str(PROCESSES)
    trainer = trainer_of(library, folder / way, way)
    trainer.evaluate()  # shards the model in stage 3, and must leave it fit for training
    trainer.train()
    record = seen(trainer, folder / way)
    if way in RESUMED:
        cut = folder / f"{way}-cut-{PROCESSES}"
        trainer_of(library, cut, way, stop=3).train()
        resumed = trainer_of(library, cut, way, seed=99)
        resumed.train(resume_from_checkpoint=True)
        record["resumed"] = seen(resumed, cut)
    if way == "stage3":
        trainer.args.save_strategy, trainer.args.load_best_model_at_end = "no", False
        record["again"] = trainer.train().training_loss  # with the model as it is, and a new engine
    return record


def allow_float16() -> None:
    """Let both libraries take float16 on the CPU, where it is slow, but right."""
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    type(accelerator).is_fp16_supported = lambda self: True
    plan = importlib.import_module("lightrainer.facade.strategies.deepspeed").DeepSpeed
    plan.check = lambda self, args, model: None


def dealt_out(library: Any, folder: Path, way: str) -> dict[str, Any]:
    """`FROM-PROCESSES-TO`: resumes, in the way TO, from the first checkpoint that PROCESSES
    processes have written in the way FROM.
    """
    before, processes, after = way.split("-")
    start = folder / processes / ("stage3" if before == "converted" else before) / "checkpoint-2"
    if before == "converted":
        into = folder / f"{before}-{PROCESSES}"
        if os.environ.get("RANK", "0") == "0":
            importlib.import_module("lightrainer.lightning_modules.checkpoints.conversion").convert(
                start, into
            )
        if PROCESSES > 1:
            torch.distributed.barrier()
        start = into / start.name
    trainer = trainer_of(library, folder / way, after, seed=99)
    trainer.train(resume_from_checkpoint=str(start))
    return seen(trainer, folder / way)


def refusals(library: Any, folder: Path) -> dict[str, str]:
    """Return the errors of what cannot be, beside checkpoints that two processes have written."""
    other = lambda way, stage, **more: trainer_of(
        library, folder / "refused", way, deepspeed=zero(stage, **more)
    )
    fp16 = trainer_of(
        library,
        folder / "refused",
        "plain",
        deepspeed=zero(2, {"fp16": {"enabled": "auto"}}),
        fp16=True,
    )
    open_keys = trainer_of(
        library, folder / "refused", "plain", deepspeed=zero(2, reduce_bucket_size="auto")
    )
    free = trainer_of(library, folder / "refused", "stage2", optim="lomo")
    written = str(folder / "2" / "stage2" / "checkpoint-6")
    return {
        "stage": refusal(lambda: other("stage0", 0).train(resume_from_checkpoint=written)),
        "elsewhere": refusal(
            lambda: other("stage3", 3, mics_shard_size=1).train(resume_from_checkpoint=written)
        ),
        "fp16": refusal(fp16.train),
        "open": refusal(open_keys.train),
        "optimizer": refusal(free.train),
    }


def pretrained(folder: Path) -> dict[str, Any]:
    """A model of `transformers` that is loaded while arguments with stage 3 exist, with its
    names served.
    """
    import lightrainer

    lightrainer.install()
    import transformers
    from transformers.integrations import is_deepspeed_zero3_enabled

    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0
    )
    torch.manual_seed(5)
    if os.environ.get("RANK", "0") == "0":
        transformers.GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    record: dict[str, Any] = {"losses": {}}
    data = [{"input_ids": row["ids"], "labels": row["ids"]} for row in samples(8, 3)]
    more = {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    for name, deepspeed in (("plain", None), ("stage3", zero(3, **more))):
        common = {
            "per_device_train_batch_size": 2,
            "num_train_epochs": 2,
            "logging_steps": 1,
            "save_strategy": "no",
        }
        common |= QUIET
        args = transformers.TrainingArguments(
            output_dir=str(folder / name), deepspeed=deepspeed, **common
        )
        if PROCESSES > 1:
            torch.distributed.barrier()
        model = transformers.GPT2LMHeadModel.from_pretrained(folder / "gpt2")
        record[f"{name} enabled"] = is_deepspeed_zero3_enabled()
        record[f"{name} numel"] = sum(parameter.numel() for parameter in model.parameters())
        model.eval()
        trainer = transformers.Trainer(model=model, args=args, train_dataset=data)
        trainer.train()
        trainer.save_model()
        record["losses"][name] = history(trainer)["loss"]
        record[f"{name} flos"] = trainer.state.total_flos
        record[f"{name} saved"] = sorted(
            path.name for path in (folder / name).glob("*.safetensors")
        )
    return record


def put_together(folder: Path) -> None:
    """Return what DeepSpeed's own script makes of weights in parts."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state_dict = get_fp32_state_dict_from_zero_checkpoint(str(folder / "2" / "parts" / "saved"))
    torch.save(
        {name: tensor.clone() for name, tensor in state_dict.items()}, folder / "together.pt"
    )


def write(folder: Path, name: str, found: Any) -> None:
    rank = os.environ.get("RANK", "0")
    (folder / f"{name}-{PROCESSES}-rank{rank}.json").write_text(json.dumps(found))


def main(name: str, folder: Path, ways: list[str]) -> None:
    library = importlib.import_module(name)
    # gloo does it; compiled, it waits for ever for the lock of a process that was killed
    if name == "transformers":
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    for way in ways:
        if way.startswith("fp16") and ON_CPU:
            allow_float16()
        if way == "refusals":
            write(folder, way, refusals(library, folder))
        elif way == "pretrained":
            write(folder, way, pretrained(folder))
        elif way == "together":
            put_together(folder)
        elif way.count("-") == 2:
            write(folder, way, dealt_out(library, folder, way))
        elif way.startswith("from_reference-"):
            inner = way.removeprefix("from_reference-")
            options = {
                "gradient_accumulation_steps": 1,
                "load_best_model_at_end": False,
                "save_strategy": "no",
            }
            trainer = trainer_of(library, folder / way, inner, **options)
            trainer.train(
                resume_from_checkpoint=str(folder / f"reference-{inner}" / "checkpoint-5")
            )
            write(folder, way, history(trainer))
        elif name == "transformers" or way.startswith("single_batch-"):
            kind, inner = (
                ("reference" if name == "transformers" else "single_batch"),
                way.removeprefix("single_batch-"),
            )
            trainer = trainer_of(
                library, folder / f"{kind}-{inner}", inner, gradient_accumulation_steps=1
            )
            trainer.train()
            write(folder, f"{kind}-{inner}", history(trainer))
        else:
            write(folder, way, of_way(library, folder, way))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    # it leaves threads of the process group, which may abort at the exit of Python
    if sys.argv[1] == "transformers":
        sys.stdout.flush()
        os._exit(0)
