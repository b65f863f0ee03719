"""The data side of the Trainer: which samples, in which order, with which columns."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sized
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...lightning_modules.common.seeding import seed_worker
from ...lightning_modules.data.collators import RemoveColumnsCollator
from ...lightning_modules.data.lengths import LengthGroupedSampler, column_lengths, has_length, sample_lengths
from ...lightning_modules.data.loaders import build_loader
from ...lightning_modules.data.workers import attached_worker, deaf_worker
from ...lightning_modules.models import inspection
from ..arguments.parallelism import copies_of_batches, data_rank
from .base import TrainerBase
from .checks import require_dataset
from .columns import is_hub_dataset, remove_unused

logger = logging.getLogger(__name__)


class TrainerData(TrainerBase):
    """From datasets to loaders."""

    def get_train_dataloader(self) -> DataLoader:
        """As `transformers.Trainer.get_train_dataloader`: shuffled, sharded over the processes.

        Raises:
            ValueError: there is no `train_dataset`.
        """
        if self.train_dataset is None:
            raise ValueError("Training needs data: pass train_dataset=... to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As `transformers.Trainer.get_eval_dataloader`.

        Args:
            eval_dataset: a dataset, or the name of one in a dict of them; by default the Trainer's `eval_dataset`.

        Raises:
            ValueError: there is no dataset, or none of this name.
        """
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if self.args.dataloader_persistent_workers and key in self._eval_dataloaders:
            return self._eval_dataloaders[key]
        return self._get_dataloader(
            dataset=self._find_eval_dataset(eval_dataset),
            description="evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key,
        )

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """As `transformers.Trainer.get_test_dataloader`."""
        require_dataset(test_dataset, "test_dataset")
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def num_examples(self, dataloader: DataLoader) -> int:
        """As `transformers.Trainer.num_examples`: samples behind a loader, estimated where they cannot be counted."""
        try:
            return len(getattr(dataloader, "whole_dataset", cast(Sized, dataloader.dataset)))
        except (NameError, AttributeError, TypeError):
            return len(dataloader) * self.args.per_device_train_batch_size

    def _find_eval_dataset(self, eval_dataset: Any) -> Any:
        if isinstance(eval_dataset, str):
            if not isinstance(self.eval_dataset, dict) or eval_dataset not in self.eval_dataset:
                names = ", ".join(self.eval_dataset) if isinstance(self.eval_dataset, dict) else "no names"
                raise ValueError(f"There is no eval_dataset called {eval_dataset!r}; the Trainer has {names}.")
            require_dataset(self.eval_dataset[eval_dataset], f"eval_dataset[{eval_dataset!r}]")
            return self.eval_dataset[eval_dataset]
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(found, str):
            raise TypeError(f"eval_dataset is {found!r}, a name. Pass the dataset itself, or a dict of datasets.")
        if found is None:
            raise ValueError("Evaluation needs data: pass eval_dataset=... to the Trainer, or to evaluate().")
        require_dataset(found, "eval_dataset")
        return found

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[int] | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        collator, whole = self.data_collator, dataset
        if is_hub_dataset(dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        stream = isinstance(dataset, IterableDataset)
        sampler = self._sampler_of(dataset, whole, sampler_fn) if sampler_fn is not None and not stream else None
        config: Any = self.args.accelerator_config
        loader = build_loader(
            dataset,
            batch_size=batch_size,
            collate_fn=collator,
            sampler=sampler,
            seed=self.args.data_seed,
            seedable=config.use_seedable_sampler,
            drop_last=self.args.dataloader_drop_last and not stream,
            rank=self.args.process_index,
            world_size=self.args.world_size,
            copies=copies_of_batches(self.args),
            even_batches=self.accelerator.even_batches,
            split_batches=config.split_batches,
            dispatch_batches=config.dispatch_batches,
            **self._worker_options(is_training and not stream),
        )
        if dataloader_key is not None and self.args.dataloader_persistent_workers:
            self._eval_dataloaders[dataloader_key] = loader
            loader.track()
            loader.had_workers(self._evaluated_before.get(dataloader_key))
        return loader

    def _worker_options(self, seeded: bool) -> dict[str, Any]:
        workers = self.args.dataloader_num_workers
        options: dict[str, Any] = {
            "num_workers": workers,
            "pin_memory": self.args.dataloader_pin_memory and self.args.device.type != "cpu",
            "persistent_workers": self.args.dataloader_persistent_workers,
            "prefetch_factor": self.args.dataloader_prefetch_factor,
            "multiprocessing_context": self.args.dataloader_multiprocessing_context,
            "in_order": self.args.dataloader_in_order,
        }
        if seeded:
            rank = data_rank(self.args)
            options["worker_init_fn"] = functools.partial(seed_worker, num_workers=workers, rank=rank)
        if workers > 0 and self._signals.handled:  # a signal goes to all processes of a group, as a rule
            then, listens = options.get("worker_init_fn"), self._signals.shared_flag
            options["worker_init_fn"] = functools.partial(
                deaf_worker, signals=self._signals.handled, listens=listens, then=then
            )
        if workers > 0 and self.args.world_size > 1:  # they hold copies of the connections to the other processes
            options["worker_init_fn"] = functools.partial(attached_worker, then=options.get("worker_init_fn"))
        return options

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or not has_length(dataset):
            return None
        order = self._training_order()
        if order == "group_by_length":
            group = self.args.train_batch_size * self.args.gradient_accumulation_steps
            return self._by_length(dataset, self._length_group or group)
        if order == "sequential":
            return SequentialSampler(dataset)
        if len(dataset) == 0:
            return SequentialSampler(dataset)  # RandomSampler refuses it with a message about num_samples
        return RandomSampler(dataset)

    def _training_order(self) -> str:
        return self.args.train_sampling_strategy

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        if eval_dataset is None or not has_length(eval_dataset):
            return None
        if self.args.train_sampling_strategy == "group_by_length":
            return self._by_length(eval_dataset, self.args.eval_batch_size)
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def _sampler_of(self, dataset: Any, whole: Any, sampler_fn: Callable[..., Sampler[int] | None]) -> Any:
        """The sampler of a dataset that may lack columns of the `whole` one, such as that of the lengths."""
        self._whole_dataset = (dataset, whole)
        try:
            # Overrides of older scripts take the dataset from the Trainer.
            return sampler_fn(dataset) if inspect.signature(sampler_fn).parameters else sampler_fn()
        finally:
            self._whole_dataset = None

    def _by_length(self, dataset: Any, batch_size: int) -> LengthGroupedSampler:
        reduced, whole = self._whole_dataset or (None, None)
        known_by = whole if reduced is dataset else dataset
        names = getattr(self.processing_class, "model_input_names", None) or ["input_ids"]
        column = self.args.length_column_name
        lengths = self._lengths.get(
            known_by, (column, names[0]), lambda: self._measure(dataset, column_lengths(known_by, column), names[0])
        )
        return LengthGroupedSampler(batch_size, lengths=lengths)

    def _measure(self, dataset: Any, given: Any, name: str) -> Any:
        if given is not None:
            return given
        method, workers = self.args.dataloader_multiprocessing_context, self.args.dataloader_num_workers
        return sample_lengths(dataset, name, workers=workers, start_method=method)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = inspection.signature_columns(
                inspection.base_of_adapter(self.model), self.label_names
            )

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        assert self._signature_columns is not None
        return remove_unused(dataset, self._signature_columns, type(self.model).__name__, description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        assert self._signature_columns is not None
        return RemoveColumnsCollator(
            data_collator=data_collator,
            signature_columns=self._signature_columns,
            logger=logger,
            description=description,
            model_name=type(self.model).__name__,
        )
