"""Generation of predictions in the evaluations of a `Seq2SeqTrainer`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lightning_modules.common.nested import find_batch_size
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.generation import (
    fill_defaults,
    generate,
    padded_length,
    require_generate,
    without_answers,
)
from ...lightning_modules.models.generation_config import (
    generation_config_class,
    set_generation_config,
)
from ...lightning_modules.models.outputs import read_loss
from ...lightning_modules.models.signatures import accepted_arguments
from .components import TrainerComponents
from .model_setup import ModelSetup
from .overrides import is_own
from .steps import loss_and_outputs, no_loss_and_outputs

if TYPE_CHECKING:
    from .. import Seq2SeqTrainer


class Seq2SeqModelSetup(ModelSetup):
    """Give a `Seq2SeqTrainer` its model, with the generation config of the arguments."""

    trainer: WeakAttribute[Seq2SeqTrainer] = WeakAttribute()

    _applied_generation_config: Any = None
    """The `args.generation_config` that was applied to the model; None in a copy of a Trainer."""

    def adopt(self, model: nn.Module) -> None:
        """Set the model, and apply the generation config of the arguments to it."""
        super().adopt(model)
        self._set_generation_config()
        trainer = self.trainer
        if trainer.args.predict_with_generate and is_own(trainer, "prediction_step"):
            require_generate(model)

    def renew(self, trial: object) -> None:
        """Create a new model, and apply the generation config of the arguments to it."""
        super().renew(trial)
        if self.trainer.model_init is not None:
            self._set_generation_config()

    def update(self, changed: set[str]) -> None:
        """Update the derived attributes, and apply another generation config to the model."""
        super().update(changed)
        if self.trainer.args.generation_config is not self._applied_generation_config:
            self._set_generation_config()

    def _set_generation_config(self) -> None:
        """Apply the generation config of the arguments, if any, to the model."""
        trainer = self.trainer
        generation_config = trainer.args.generation_config
        self._applied_generation_config = generation_config
        if generation_config is None:
            return
        require_generate(trainer.model)

        # An override may lack the parameter `kind`.
        kwargs = accepted_arguments(
            trainer.load_generation_config, kind=generation_config_class(trainer.model)
        )
        config = trainer.load_generation_config(generation_config, **kwargs)
        set_generation_config(trainer.model, config)


class Seq2SeqComponents(TrainerComponents):
    """The components of a `Seq2SeqTrainer`, and the state of its generation."""

    # Set by `generate`, and read when its results are gathered.
    _rows_generated = 0
    """Number of rows generated for the last batch on this rank."""
    _rows_per_sample = 1
    """Number of rows per sample, `num_return_sequences`."""

    trainer: WeakAttribute[Seq2SeqTrainer] = WeakAttribute()

    model_setup = cached_property(lambda self: Seq2SeqModelSetup(self.trainer))

    # Steps of an evaluation.

    def with_defaults(self, gen_kwargs: dict[str, Any]) -> dict[str, object]:
        """Return keyword arguments of `generate`, completed by those of the training arguments."""
        args = self.trainer.args
        resolved = dict(gen_kwargs)
        has_length = any(
            resolved.get(name) is not None for name in ("max_length", "max_new_tokens")
        )
        if args.generation_max_length is not None and not has_length:
            resolved["max_length"] = args.generation_max_length
        if args.generation_num_beams is not None and resolved.get("num_beams") is None:
            resolved["num_beams"] = args.generation_num_beams
        return resolved

    def generate(self, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> torch.Tensor:
        """Generate token ids for a batch, without padding them."""
        # None selects the setting of the model.
        options = dict(gen_kwargs)
        for name in ("max_length", "num_beams"):
            if name in options and options[name] is None:
                del options[name]

        # If weights are sharded, all ranks must run each forward pass together, so a rank whose
        # sequences are complete continues until all ranks are done.
        model = self.trainer.model
        strategy = self.strategy
        with strategy.generation_context():
            tokens = generate(
                model, without_answers(inputs), options, synced_gpus=strategy.shards_weights
            )
        fill_defaults(getattr(model, "generation_config", None))

        samples = find_batch_size(inputs) or len(tokens)
        self._rows_generated = len(tokens)
        self._rows_per_sample = len(tokens) // samples
        return tokens

    def loss_of_labels(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a forward pass with labels."""
        trainer = self.trainer
        if trainer.compute_loss_func is not None or not is_own(trainer, "compute_loss"):
            return loss_and_outputs(trainer, model, dict(inputs))[0]
        _, outputs = no_loss_and_outputs(trainer, model, inputs)
        if trainer.label_smoother is not None:
            return trainer.label_smoother(outputs, inputs["labels"]).mean()
        return read_loss(outputs, inputs, first_of_vector=True).mean()

    def padded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Pad rows of token ids to the `max_length` of the model's generation config, if any."""
        trainer = self.trainer
        config = getattr(trainer.model, "generation_config", None)
        length = padded_length(config, tokens.shape[-1])
        if length == tokens.shape[-1]:
            return tokens
        return trainer._pad_tensors_to_max_len(tokens, length)

    @contextlib.contextmanager
    def gathering_sequences(self) -> Iterator[None]:
        """Gather all generated sequences of each sample in an evaluation.

        As in the reference, all batches have equal weight in the loss, even a shorter last one.
        Unlike in the reference, duplicate samples that fill up the last batches are removed from
        the predictions. As in the reference, the attribute `gather_function` keeps its value
        afterwards.
        """
        trainer = self.trainer
        self.gather_losses = trainer.accelerator.gather
        if trainer.gather_function == trainer.accelerator.gather_for_metrics:
            trainer.gather_function = self._gather_sequences
        try:
            yield
        finally:
            self.gather_losses = None

    def _gather_sequences(self, input_data: object, use_gather_object: bool = False) -> object:
        """Gather like `accelerator.gather_for_metrics`, but with several rows per sample."""
        accelerator = self.trainer.accelerator
        if accelerator.num_processes == 1:
            return input_data

        # `remainder` is the number of samples in the last batch; convert it to rows.
        remainder = accelerator.remainder
        is_generated = (
            isinstance(input_data, torch.Tensor) and len(input_data) == self._rows_generated
        )
        if is_generated and remainder > 0:
            accelerator.remainder = remainder * self._rows_per_sample
        try:
            return accelerator.gather_for_metrics(input_data, use_gather_object=use_gather_object)
        finally:
            accelerator.remainder = remainder
