"""`Seq2SeqTrainer`, which evaluates and predicts by generating tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Sampler

from ...lightning_modules.models.generation import padding_token
from ...lightning_modules.models.generation_config import read_generation_config
from ..arguments import Seq2SeqTrainingArguments
from ..arguments.fields import GenerationArguments
from ..arguments.unknown import understand_old_names
from ..evaluation.results import PredictionOutput
from .evaluating import data_to_evaluate, evaluate_each
from .generating import Seq2SeqComponents
from .trainer import Trainer


@understand_old_names
class Seq2SeqTrainer(Trainer):
    """Train sequence-to-sequence models, and evaluate what they generate.

    Works like `transformers.Seq2SeqTrainer`, but for any model with a `generate` method. With
    `predict_with_generate=True`, the predictions of `predict`, and of `evaluate` if there are
    `compute_metrics`, are generated token ids, while the loss is computed by a forward pass with
    the labels. Everything else is as in `Trainer`.

    A model without a `generation_config` is supported as well: `args.generation_config` and the
    keyword arguments of `evaluate` and `predict` are passed to its `generate`, and predictions of
    different lengths are padded with -100.

    Args:
        args: the training arguments; by default `Seq2SeqTrainingArguments("tmp_trainer")`.
        model, data_collator, train_dataset, eval_dataset, processing_class, model_init,
            compute_loss_func, compute_metrics, callbacks, optimizers,
            preprocess_logits_for_metrics, optimizer_cls_and_kwargs, eval_data_collator: see
            `Trainer`.

    Raises:
        TypeError: the arguments are not `Seq2SeqTrainingArguments`, or the model cannot generate.
        ValueError: invalid `args.generation_config`; lists all problems.
        FileNotFoundError: `args.generation_config` is a path that does not exist.
    """

    args: Seq2SeqTrainingArguments
    _gen_kwargs: dict[str, Any]
    """Keyword arguments of `generate` in the current evaluation; overrides of `evaluate` may set
    it.
    """
    _lightrainer = cached_property(Seq2SeqComponents)

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Seq2SeqTrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Optimizer | None, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        *,
        eval_data_collator: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if args is None:
            args = Seq2SeqTrainingArguments(output_dir="tmp_trainer")
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            eval_data_collator=eval_data_collator,
        )

    @staticmethod
    def load_generation_config(gen_config_arg: Any, kind: type | None = None) -> Any:
        """Read generation settings from any value that `generation_config` accepts.

        Called by the constructor if `args.generation_config` is set. Unlike the method of
        transformers, it also accepts a dict.

        Args:
            gen_config_arg: a value of `Seq2SeqTrainingArguments.generation_config`: an object, a
                dict, a JSON file, a folder, or a name on the Hub.
            kind: class of the config; by default that of transformers if the library is imported,
                otherwise `dict`.

        Returns:
            The validated settings, as a new object of that class.

        Raises:
            FileNotFoundError: the path does not exist.
            ValueError: invalid settings.
        """
        return read_generation_config(gen_config_arg, kind)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate the model, with `predict_with_generate=True` by generating.

        Called and overridden like `Trainer.evaluate`.

        Args:
            eval_dataset: a dataset, a dict of them, or the name of one; by default the Trainer's.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...; for a dict
                `{prefix}_{name}_loss`.
            gen_kwargs: keyword arguments of `generate`, such as `max_length`, `max_new_tokens`
                (both in tokens) or `num_beams`. They override the training arguments, which
                override the model's own settings.

        Returns:
            The metrics by name, see `Trainer.evaluate`.

        Raises:
            ValueError: the dataset is missing, or has another name.
        """
        # For a dict of datasets, this method is called again for each dataset, with these keyword
        # arguments.
        data = data_to_evaluate(self, eval_dataset)
        if isinstance(data, dict) and gen_kwargs:
            return evaluate_each(self, data, ignore_keys, metric_key_prefix, **gen_kwargs)

        self._gen_kwargs = self._lightrainer.with_defaults(gen_kwargs)
        with self._lightrainer.gathering_sequences():
            return super().evaluate(
                eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
            )

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict a dataset, with `predict_with_generate=True` by generating.

        Called and overridden like `Trainer.predict`.

        Args:
            test_dataset: the samples; labels are not needed.
            ignore_keys: outputs of the model that are not predictions.
            metric_key_prefix: the metrics are called `{prefix}_loss`, ...
            gen_kwargs: keyword arguments of `generate`, see `evaluate`.

        Returns:
            `(predictions, label_ids, metrics)`: token ids and labels as int64 arrays of shape
            (samples, length). With `num_return_sequences`, each sample has that many consecutive
            rows. Both arrays are padded with the padding token to the `max_length` of the model's
            generation config. If some batches are longer, the rows of the others are padded with
            -100 to the same length.
        """
        self._gen_kwargs = self._lightrainer.with_defaults(gen_kwargs)
        with self._lightrainer.gathering_sequences():
            return super().predict(
                test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
            )

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Compute the loss of one batch, and generate its predictions, without gradients.

        Called by `evaluation_loop` for each batch. Equivalent to `Trainer.prediction_step` without
        `predict_with_generate`. An override may generate in another way.

        Args:
            model: the model to evaluate.
            inputs: keyword arguments of its `forward` and `generate`.
            prediction_loss_only: only compute the loss, without generating.
            ignore_keys: outputs of the model that are not predictions.
            gen_kwargs: keyword arguments of `generate`; by default those of the current evaluation.

        Returns:
            The loss (a scalar), and the generated token ids and the labels of shape (samples,
            length). Missing values are None.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(
                model, inputs, prediction_loss_only, ignore_keys=ignore_keys
            )

        # A collator may pass None for missing labels.
        inputs = self._prepare_inputs(inputs)
        inputs = {name: value for name, value in inputs.items() if value is not None}
        labels = inputs.get("labels")

        # Generate, and compute the loss in a separate forward pass with the labels.
        generation = self._lightrainer
        loss = None
        with torch.no_grad():
            tokens = generation.generate(inputs, gen_kwargs or getattr(self, "_gen_kwargs", {}))
            if labels is not None:
                loss = generation.loss_of_labels(model, inputs)
        if self.args.prediction_loss_only:
            return loss, None, None

        tokens = generation.padded(tokens)
        if labels is not None:
            labels = generation.padded(labels)
        return loss, tokens, labels

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        """Pad rows to `max_length` with the padding token."""
        token = padding_token(self.processing_class, self.model)
        padded = tensor.new_full((tensor.shape[0], max_length), token)
        padded[:, : tensor.shape[-1]] = tensor
        return padded

    @classmethod
    def _advice(cls, name: str, known_names: Collection[str]) -> str:
        if name in GenerationArguments.__dataclass_fields__:
            return f"This is a training argument. Pass args=Seq2SeqTrainingArguments({name}=...)."
        return super()._advice(name, known_names)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        order = self.args.train_sampling_strategy
        if not self.args.sortish_sampler or order != "random":
            return super()._get_train_sampler(train_dataset)
        dataset = train_dataset
        if dataset is None:
            dataset = self.train_dataset
        return self._lightrainer.data_loading.train_sampler(dataset, "group_by_length")
