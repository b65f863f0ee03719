"""Seeds, devices, data, processes, and arguments that only scripts read."""

from datetime import timedelta
from typing import Any

import torch

from helpers.contract.effects import (
    Effect,
    OnCuda,
    Place,
    becomes,
    built,
    differ,
    logged,
    make,
    of_arguments,
    one_of_four,
)
from helpers.contract.of_saving import Recording
from helpers.trainer.tiny_trainings import points
from lightrainer import TrainingArguments
from lightrainer.facade.strategies.plan import translate
from lightrainer.lightning_modules.common import seeding

losses = logged("loss")


def _order(given: dict[str, Any], place: Place) -> list[float]:
    """The samples of a training, in order."""
    trainer = make(given, place, model=Recording)
    trainer.train()
    assert sorted(trainer.model.seen) == sorted(float(item["x"][0]) for item in points())
    return trainer.model.seen


def _order_and_losses(given: dict[str, Any], place: Place) -> tuple[list[float], list[float]]:
    trainer = make(given, place, model=Recording)
    trainer.train()
    return trainer.model.seen, losses(trainer)


def _deterministic(given: dict[str, Any], place: Place) -> bool:
    """Return True if torch uses deterministic operations only."""
    for name in seeding.DETERMINISTIC_ENVIRONMENT:
        place.patch.setenv(name, "0")
    try:
        make(given, place)
        return torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def _device_with_a_gpu(given: dict[str, Any], place: Place) -> str:
    """The device on a machine with a GPU; nothing is put on it."""
    from lightrainer.facade.distributed import process

    place.patch.setattr(torch.cuda, "is_available", lambda: True)
    place.patch.setattr(torch.cuda, "set_device", lambda device: None)
    place.patch.setattr(torch.cuda, "device_count", lambda: 1)
    process._environment_of.cache_clear()
    try:
        return TrainingArguments(**{"output_dir": str(place.folder), **given}).device.type
    finally:
        place.patch.undo()
        process._environment_of.cache_clear()


def loader(name: str, kind: type[TrainingArguments] = TrainingArguments) -> Any:
    """An attribute of the DataLoader that a training would read."""
    return built(lambda trainer: getattr(trainer.get_train_dataloader(), name), kind=kind)


def _batches(trainer: Any) -> int:
    return len(trainer.get_train_dataloader())


def _columns(trainer: Any) -> list[str]:
    return sorted(next(iter(trainer.get_train_dataloader())))


def with_another_column() -> list[dict[str, torch.Tensor]]:
    return [{**item, "extra": item["x"]} for item in points()]


def _lengths(given: dict[str, Any], place: Place) -> list[int]:
    """Return the lengths by which samples are grouped."""
    import datasets

    rows = [
        {"input_ids": [1] * (1 + index), "length": index, "size": 100 - index} for index in range(8)
    ]
    trainer = make(given, place, train_dataset=lambda: datasets.Dataset.from_list(rows))
    return trainer._get_train_sampler().lengths


def _samples_of_batches(given: dict[str, Any], place: Place) -> list[int]:
    """Return how many samples of two tokens are in each batch."""
    ordered = {"train_sampling_strategy": "token_budget"} if "max_tokens_per_batch" in given else {}
    trainer = make({**given, **ordered}, place, train_dataset=lambda: [{"input_ids": [1, 1]}] * 16)
    return sorted(map(len, trainer.get_train_dataloader().batch_sampler))


def _strategy(name: str) -> Any:
    """An option of the strategy that Lightning is given for four processes."""
    return of_arguments(
        lambda args: translate(args).strategy.options.get(name), kind=one_of_four(0, 0)
    )


of_four = of_arguments(lambda args: translate(args).strategy.name, kind=one_of_four(0, 0))


def only_kept(name: str) -> Any:
    """The value of an argument, and the losses of a training, on which it has no influence."""

    def observe(given: dict[str, Any], place: Place) -> tuple[Any, list[float]]:
        trainer = make(given, place)
        trainer.train()
        return getattr(trainer.args, name), losses(trainer)

    return observe


def kept(usual: Any, changed: Any) -> Any:
    """The value is there for scripts, and the training is the same."""
    return lambda seen, other: (seen[0], other[0]) == (usual, changed) and seen[1] == other[1] != []


def for_scripts(name: str, default: Any, value: Any) -> Effect:
    """An argument that is documented to be read by scripts only."""
    return Effect(value, only_kept(name), kept(default, value))


ENTRIES: dict[str, Effect] = {
    "seed": Effect(
        7,
        _order_and_losses,
        lambda usual, changed: usual[0] != changed[0] and usual[1] != changed[1],
    ),
    "data_seed": Effect(7, _order, differ),
    "full_determinism": Effect(True, _deterministic, becomes(False, True)),
    "use_cpu": Effect(True, _device_with_a_gpu, becomes("cuda", "cpu")),
    "accelerator_config": Effect({"use_seedable_sampler": False}, _order, differ),
    # Data.
    "dataloader_drop_last": Effect(
        True, built(_batches, train_dataset=lambda: points(15)), becomes(4, 3)
    ),
    "dataloader_num_workers": Effect(1, loader("num_workers"), becomes(0, 1)),
    "dataloader_pin_memory": Effect(
        False, loader("pin_memory", OnCuda), becomes(True, False), {"use_cpu": False}
    ),
    "dataloader_persistent_workers": Effect(
        True, loader("persistent_workers"), becomes(False, True), {"dataloader_num_workers": 1}
    ),
    "dataloader_prefetch_factor": Effect(
        3, loader("prefetch_factor"), becomes(2, 3), {"dataloader_num_workers": 1}
    ),
    "dataloader_multiprocessing_context": Effect(
        "spawn",
        built(
            lambda trainer: type(trainer.get_train_dataloader().multiprocessing_context).__name__
        ),
        becomes("NoneType", "SpawnContext"),
        {"dataloader_num_workers": 1},
    ),
    "dataloader_in_order": Effect(
        False, loader("in_order"), becomes(True, False), {"dataloader_num_workers": 1}
    ),
    "remove_unused_columns": Effect(
        False,
        built(_columns, train_dataset=with_another_column),
        becomes(["labels", "x"], ["extra", "labels", "x"]),
    ),
    "label_names": Effect(
        ["absent"],
        lambda given, place: make(given, place).predict(points(3)).label_ids is None,
        becomes(False, True),
    ),
    "train_sampling_strategy": Effect(
        "sequential",
        _order,
        lambda usual, changed: changed == [float(item["x"][0]) for item in points()] != usual,
    ),
    "length_column_name": Effect(
        "size",
        _lengths,
        becomes(list(range(8)), list(range(100, 92, -1))),
        {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False},
    ),
    "max_tokens_per_batch": Effect(
        6, _samples_of_batches, becomes([4, 4, 4, 4], [1, 3, 3, 3, 3, 3])
    ),
    # Processes.
    "ddp_find_unused_parameters": Effect(
        False, _strategy("find_unused_parameters"), becomes(True, False)
    ),
    "ddp_bucket_cap_mb": Effect(7, _strategy("bucket_cap_mb"), becomes(None, 7)),
    "ddp_broadcast_buffers": Effect(False, _strategy("broadcast_buffers"), becomes(None, False)),
    "ddp_static_graph": Effect(True, _strategy("static_graph"), becomes(None, True)),
    "fsdp": Effect("full_shard", of_four, becomes("DDPStrategy", "FSDPStrategy")),
    "fsdp_config": Effect(
        {"version": 2},
        of_four,
        becomes("FSDPStrategy", "ModelParallelStrategy"),
        {"fsdp": "full_shard"},
    ),
    "deepspeed": Effect(
        {"zero_optimization": {"stage": 2}}, of_four, becomes("DDPStrategy", "DeepSpeedStrategy")
    ),
    "parallelism_config": Effect(
        {"dp_replicate_size": 2, "dp_shard_size": 2},
        of_four,
        becomes("DDPStrategy", "ModelParallelStrategy"),
    ),
    "ddp_backend": Effect("gloo", _strategy("process_group_backend"), becomes(None, "gloo")),
    "ddp_timeout": Effect(
        60, _strategy("timeout"), becomes(timedelta(seconds=1800), timedelta(seconds=60))
    ),
    # What scripts read.
    "do_train": for_scripts("do_train", False, True),
    "do_eval": for_scripts("do_eval", False, True),
    "do_predict": for_scripts("do_predict", False, True),
    "resume_from_checkpoint": for_scripts("resume_from_checkpoint", None, "checkpoint-2"),
    "local_rank": for_scripts("local_rank", -1, 0),
}
