"""Build the data loaders and samplers of a Trainer."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...lightning_modules.common.libraries import is_instance
from ...lightning_modules.common.seeding import seed_worker
from ...lightning_modules.common.version_behavior import version_behavior
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.common.worker_processes import attached_worker, ignore_signals
from ...lightning_modules.data.collators import DataCollatorWithPadding, default_data_collator
from ...lightning_modules.data.length_grouping import LengthGroupedSampler
from ...lightning_modules.data.lengths import (
    LengthCache,
    column_lengths,
    has_length,
    is_table,
    sample_lengths,
)
from ...lightning_modules.data.loaders import build_loader
from ...lightning_modules.data.stateful_parts import random_states, restore_random_states
from ...lightning_modules.data.token_budget import TokenBudgetSampler
from ...lightning_modules.models.signatures import accepted_arguments
from ..accelerator.prepared import LoaderWatcher
from ..arguments.rank_groups import (
    copies_of_batches,
    data_parallel_rank,
    order_seed,
    sharding_options,
)
from ..evaluation.results import TrainingLength
from .checks import require_dataset

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments import AcceleratorConfig, TrainingArguments


class DataLoading:
    """Build the loaders and samplers of a Trainer, and cache the lengths of samples.

    Args:
        trainer: the Trainer; its methods choose columns and samplers.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._lengths = LengthCache()
        self._reduced_dataset: object = None
        """The dataset without unused columns, while its sampler is being created."""
        self._full_dataset: object = None
        """The same dataset with all columns."""

    def loader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Any,
        is_training: bool,
        key: str | None,
    ) -> DataLoader:
        """Build a loader; takes the parameters of `Trainer._get_dataloader`."""
        trainer = self.trainer
        args = trainer.args
        collator = trainer.data_collator
        if not is_training and trainer.eval_data_collator is not None:
            collator = trainer.eval_data_collator

        # Unused columns of a table are dropped here; from other data the collator removes them.
        full_dataset = dataset
        if is_table(dataset):
            dataset = trainer._remove_unused_columns(dataset, description=description)
        else:
            collator = trainer._get_collator_with_removed_columns(collator, description=description)

        # As in the reference, a stream has no sampler, keeps its last incomplete batch, and does
        # not seed workers.
        is_stream = isinstance(dataset, IterableDataset)
        sampler = None
        if sampler_fn is not None and not is_stream:
            sampler = self._sampler(dataset, full_dataset, sampler_fn)

        loader: Any = build_loader(
            dataset,
            batch_size=batch_size,
            collate_fn=collator,
            sampler=sampler,
            drop_last=args.dataloader_drop_last and not is_stream,
            **sharding_options(
                args,
                cast("AcceleratorConfig", args.accelerator_config),
                trainer.accelerator.even_batches,
            ),
            **self._worker_options(is_training and not is_stream),
        )

        # Overrides and scripts that iterate over the loader expect the batches to be on the device,
        # and `gather_for_metrics` to drop the samples that pad the last one.
        loader.watcher = LoaderWatcher(trainer.accelerator, moves_batches=args.device.type != "cpu")

        # Keep a reference to the loader, because its persistent workers exit with it.
        if key is not None and args.dataloader_persistent_workers:
            trainer._eval_dataloaders[key] = loader
            loader.tracked = True
            loader.restore_workers(trainer._lightrainer.data_position.evaluated_before.get(key))
        return loader

    def train_sampler(self, dataset: Any, order: str) -> Sampler[Any] | None:
        """Return the training sampler for a value of `train_sampling_strategy`."""
        if dataset is None or not has_length(dataset):
            return None
        args = self.trainer.args
        if order == "group_by_length":
            group_size = args.train_batch_size * args.gradient_accumulation_steps
            return self._by_length(dataset, group_size)
        if order == "token_budget":
            return self._by_tokens(dataset)
        # RandomSampler raises an error for an empty dataset.
        if order == "sequential" or len(dataset) == 0:
            return SequentialSampler(dataset)
        return RandomSampler(dataset)

    def eval_sampler(self, dataset: Any) -> Sampler[int] | None:
        """Return the sampler of an evaluation; None if each process reads its shard in order."""
        args = self.trainer.args
        if dataset is None or not has_length(dataset):
            return None
        if args.train_sampling_strategy == "group_by_length":
            generator = None
            if version_behavior().seeds_evaluation_in_groups:
                generator = torch.Generator().manual_seed(order_seed(args))

            # A resumed training measures the lengths again, so that must not draw random numbers.
            random_states_before = random_states(dataset)
            sampler = self._by_length(dataset, args.eval_batch_size, generator)
            restore_random_states(random_states_before, dataset)
            return sampler
        if args.world_size > 1:
            return None
        return SequentialSampler(dataset)

    def _sampler(
        self, dataset: object, full_dataset: object, sampler_fn: Callable[..., Sampler[int] | None]
    ) -> object:
        """Call `sampler_fn`; lengths are read from `full_dataset`, which has all columns."""
        self._reduced_dataset = dataset
        self._full_dataset = full_dataset
        try:
            # Overrides in older scripts take no parameter, and read `self.train_dataset`.
            if not inspect.signature(sampler_fn).parameters:
                return sampler_fn()
            return sampler_fn(dataset)
        finally:
            self._reduced_dataset = None
            self._full_dataset = None

    def _by_length(
        self, dataset: Any, batch_size: int, generator: Any = None
    ) -> LengthGroupedSampler:
        return LengthGroupedSampler(
            batch_size, lengths=self._lengths_of(dataset), generator=generator
        )

    def _by_tokens(self, dataset: Any) -> TokenBudgetSampler:
        args = self.trainer.args
        self._require_own_batches()
        assert args.max_tokens_per_batch is not None, "a rule of the arguments"

        # The number of samples is only limited if the user has set per_device_train_batch_size.
        max_samples = None
        default = type(args).__dataclass_fields__["per_device_train_batch_size"].default
        if args.train_batch_size != default:
            max_samples = args.train_batch_size

        return TokenBudgetSampler(
            self._lengths_of(dataset),
            args.max_tokens_per_batch,
            max_samples=max_samples,
            seed=order_seed(args),
            rank=args.process_index,
            world_size=args.world_size,
            drop_last=args.dataloader_drop_last,
        )

    def _require_own_batches(self) -> None:
        args = self.trainer.args
        config: Any = args.accelerator_config
        if copies_of_batches(args) > 1 or (args.world_size > 1 and config.dispatch_batches):
            raise NotImplementedError(
                f"train_sampling_strategy={args.train_sampling_strategy!r} needs processes that "
                "read separate batches, so it cannot be combined with dispatch_batches or this "
                "parallelism_config. Pass 'group_by_length'."
            )

    def _lengths_of(self, dataset: object) -> Any:
        """Return the lengths of all samples; they are measured once per dataset."""
        length_column = self.trainer.args.length_column_name
        input_names = getattr(self.trainer.processing_class, "model_input_names", None)
        input_name = (input_names or ["input_ids"])[0]

        # The model does not take the column of lengths as input, so `dataset` no longer has it.
        full_dataset = dataset
        if dataset is self._reduced_dataset:
            full_dataset = self._full_dataset

        def measure() -> Any:
            lengths = column_lengths(full_dataset, length_column)
            if lengths is None:
                return sample_lengths(dataset, input_name)
            return lengths

        return self._lengths.get(full_dataset, (length_column, input_name), measure)

    def _worker_options(self, seeded: bool) -> dict[str, Any]:
        args = self.trainer.args
        signals = self.trainer._lightrainer.signals
        workers = args.dataloader_num_workers
        options: dict[str, Any] = {
            "num_workers": workers,
            "pin_memory": args.dataloader_pin_memory and args.device.type != "cpu",
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "in_order": args.dataloader_in_order,
        }

        # Chain the functions that a worker calls when it starts. Each wraps the previous one, so
        # the last one is called first.
        start: Any = None
        if seeded:
            start = functools.partial(
                seed_worker, num_workers=workers, rank=data_parallel_rank(args)
            )

        # Ctrl-C and job schedulers signal the whole process group, but workers must run until the
        # main process ends the training.
        if workers > 0 and signals.handled:
            start = functools.partial(
                ignore_signals, signals=signals.handled, listens=signals.shared_flag, then=start
            )

        # A worker that outlives its rank would keep inherited connections to other ranks open.
        if workers > 0 and args.world_size > 1:
            start = functools.partial(attached_worker, then=start)

        if start is not None:
            options["worker_init_fn"] = start
        return options


_PADDING_OPTIONS = dict.fromkeys(("padding", "max_length", "pad_to_multiple_of", "return_tensors"))


def default_collator(processing_class: object) -> Callable[[list[Any]], object]:
    """Return a collator that pads with the tokenizer or feature extractor, or the default collator.

    A `pad` method whose signature differs from that of transformers is not used.
    """
    # As in the reference, multimodal processors of `transformers` are not used for padding.
    if is_instance(processing_class, "transformers.processing_utils", "ProcessorMixin"):
        return default_data_collator

    pad = getattr(processing_class, "pad", None)
    if callable(pad) and accepted_arguments(pad, **_PADDING_OPTIONS) == _PADDING_OPTIONS:
        return DataCollatorWithPadding(processing_class)
    return default_data_collator


def chosen_dataset(eval_dataset: Any, datasets_of_trainer: Any) -> object:
    """Return the dataset to evaluate.

    Args:
        eval_dataset: the dataset, its name, or None for the Trainer's own.
        datasets_of_trainer: the `eval_dataset` of the Trainer.

    Raises:
        ValueError: no dataset was passed, or none has this name.
        TypeError: it is not a dataset.
    """
    if isinstance(eval_dataset, str):
        names: list[str] = []
        if isinstance(datasets_of_trainer, dict):
            names = list(datasets_of_trainer)
        if eval_dataset not in names:
            raise ValueError(
                f"eval_dataset={eval_dataset!r} is not a dataset of the Trainer, which has "
                f"{', '.join(names) or 'no named ones'}."
            )
        return datasets_of_trainer[eval_dataset]

    if eval_dataset is None:
        eval_dataset = datasets_of_trainer
    if eval_dataset is None:
        raise ValueError(
            "Evaluation needs data: pass eval_dataset=... to the Trainer, or to evaluate()."
        )
    require_dataset(eval_dataset, "eval_dataset")
    return eval_dataset


def training_length(
    args: TrainingArguments,
    dataloader: Any,
    samples_per_step: int,
    num_examples: Callable[[Any], int],
) -> TrainingLength:
    """Return the length of a training in epochs, steps and samples.

    Args:
        args: the training arguments.
        dataloader: the training data.
        samples_per_step: samples of an optimizer step, over all processes.
        num_examples: returns the number of samples of a loader.

    Raises:
        ValueError: neither the loader nor `max_steps` gives a length.
    """
    is_sized = has_length(dataloader)
    ends_by_steps = args.max_steps > 0
    if not is_sized and not ends_by_steps:
        raise ValueError(
            f"The training data has no length. Set max_steps (it is {args.max_steps})."
        )

    # Batches and steps of an epoch. A stream is a single epoch that ends after max_steps.
    if is_sized:
        batches = len(dataloader)
    else:
        batches = args.max_steps * args.gradient_accumulation_steps
    steps_per_epoch = max(math.ceil(batches / args.gradient_accumulation_steps), 1)

    # Steps and epochs of the training.
    if ends_by_steps:
        max_steps = args.max_steps
        epochs = max_steps / steps_per_epoch
    else:
        max_steps = math.ceil(args.num_train_epochs * steps_per_epoch)
        epochs = args.num_train_epochs
    full_epochs = sys.maxsize
    if is_sized:
        full_epochs = math.ceil(epochs)

    # Samples. With a token budget, batches vary in their number of samples, so the mean is used.
    examples = max_steps * samples_per_step
    if is_sized:
        examples = num_examples(dataloader)
    mean_samples: float = samples_per_step
    if is_sized and args.max_tokens_per_batch:
        mean_samples = examples / steps_per_epoch
    if ends_by_steps:
        train_samples = max_steps * mean_samples
    else:
        train_samples = examples * args.num_train_epochs

    return TrainingLength(
        num_train_epochs=full_epochs,
        num_update_steps_per_epoch=steps_per_epoch,
        num_examples=examples,
        num_train_samples=train_samples,
        total_train_batch_size=round(mean_samples),
        steps_in_epoch=batches,
        max_steps=max_steps,
    )
