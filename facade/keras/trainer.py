"""`TFTrainer`, whose documented members call each other as in the original."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...callbacks import (
    CometCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    WandbCallback,
)
from ...lightning_modules.checkpoints import get_last_checkpoint
from ...lightning_modules.common.libraries import loaded
from ...lightning_modules.common.local_paths import require_local
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.keras.losses import losses_and_logits
from ...lightning_modules.keras.pairs import PairCollator, as_dataset, count_instances, summed_loss
from ...lightning_modules.keras.tensorflow_data import is_tensorflow_dataset, require_cardinality
from ...lightning_modules.keras.wrapping import wrap_keras_model
from ..distributed.process import forwarded
from ..evaluation.results import PredictionOutput, TrainOutput
from ..trainer.trainer import Trainer
from .arguments import TFTrainingArguments
from .checks import build, check_dataset, check_parameters, check_steps, is_overridden
from .engine import KerasEngine
from .totals import Total

if TYPE_CHECKING:
    from lightning.pytorch import Callback

logger = logging.getLogger(__name__)


class TFTrainer:
    """Train a Keras or TensorFlow model, evaluate it and predict with it, on Lightning's loops.

    Works like `transformers.TFTrainer` of versions 3 and 4.

    It trains Keras models on torch, and models that compute in TensorFlow, such as those of
    transformers 4. The documented members call each other and can be overridden: `train` calls
    `get_train_tfdataset`, `create_optimizer_and_scheduler`, and for each micro-batch
    `distributed_training_steps` -> `apply_gradients` -> `training_step` -> `compute_loss` ->
    `run_model`; `evaluate` and `predict` call `prediction_loop`, and for each batch
    `distributed_prediction_steps` -> `prediction_step` -> `compute_loss` -> `run_model`. Tensors
    belong to the library that the model computes in.

    Args:
        model: a Keras model that was compiled with a loss, or whose `call` accepts labels and
            returns (loss, logits).
        args: the arguments.
        train_dataset: a `tf.data.Dataset` of (features, labels), a sequence or an iterable of such
            pairs, or a `datasets.Dataset`.
        eval_dataset: a dataset of the same kinds, or a dict of such datasets.
        compute_metrics: a function that takes an `EvalPrediction` and returns metrics by name.
        tb_writer: a writer of `tf.summary.create_file_writer`, or torch's `SummaryWriter`, that
            logs are also written to.
        optimizers: a torch optimizer and its scheduler, instead of Keras's Adam. If Keras computes
            in torch, create the optimizer with `[variable.value for variable in
            model.trainable_variables]`. For any model, it can be created with
            `trainer.parameters()` and set as `trainer.optimizer`.
        prediction_loss_only: a parameter of transformers 3: sets `args.prediction_loss_only`.
        callbacks: TrainerCallbacks, and Lightning callbacks.

    Attributes:
        model: the model.
        train_loss, eval_loss: sums over the last batch, with `update_state`, `result` and
            `reset_states`.
        num_train_examples: samples in the training data; None before it is known.
        total_train_batch_size: samples in an optimizer step, over all replicas.
        steps_per_epoch: optimizer steps in an epoch.

    Raises:
        ImportError: keras is not installed, or TensorFlow for a model that computes in it.
        TypeError: the model, the arguments or a dataset have another type.
        ValueError: a dataset is empty, or its length or its labels are unknown.
        NotImplementedError: arguments and data cannot be combined.
    """

    def __init__(
        self,
        model: Any,
        args: TFTrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        tb_writer: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        prediction_loss_only: bool | None = None,
        callbacks: list[Any] | None = None,
    ) -> None:
        check_parameters(model, args)
        if prediction_loss_only is not None:
            args.prediction_loss_only = prediction_loss_only
        self.model = model
        self.args = args
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.compute_metrics = compute_metrics
        self.tb_writer = tb_writer
        self.num_train_examples: int | None = None
        self.total_train_batch_size = args.train_batch_size * args.gradient_accumulation_steps
        self.steps_per_epoch = 0
        self._backward_ran = False
        module = wrap_keras_model(model, self._compute, xla=args.xla)
        self.train_loss = Total(module.to_torch)
        self.eval_loss = Total(module.to_torch)

        check_dataset(train_dataset, "train_dataset", args)
        for name, data in _datasets_by_name("eval_dataset", eval_dataset).items():
            check_dataset(data, name, args)

        # Set TensorFlow's seed, which the order of tf.data's shuffle depends on.
        tensorflow = loaded("tensorflow")
        if tensorflow is not None:
            tensorflow.random.set_seed(args.seed)
        self._engine = KerasEngine(
            self,
            model=module,
            args=args.of_one_process(),
            data_collator=PairCollator(args.label_names),
            train_dataset=_readable(train_dataset),
            eval_dataset=_readable(eval_dataset),
            compute_metrics=compute_metrics,
            optimizers=optimizers,
            callbacks=callbacks,
        )
        self._set_up_trackers()

    # --- data

    def get_train_tfdataset(self) -> Any:
        """Return the training batches, repeated, and shuffled over all samples with the seed.

        Returns:
            For a `tf.data.Dataset`, a dataset whose batches have `total_train_batch_size` samples,
            those of a whole step for all replicas. For other data, a loader that yields
            micro-batches in the order of the `Trainer`. An override may return any iterable of
            batches that starts from the beginning in each iteration.

        Raises:
            ValueError: the training data is missing, or its length is unknown.
        """
        data = self.train_dataset
        args = self.args
        if data is None:
            raise ValueError("Training needs data: pass train_dataset=... to the TFTrainer.")
        self.total_train_batch_size = args.train_batch_size * args.gradient_accumulation_steps
        if not is_tensorflow_dataset(data):
            self.num_train_examples = None
            if has_length(data):
                self.num_train_examples = len(data)
            return Trainer.get_train_dataloader(self._engine)

        self.num_train_examples = require_cardinality(data, "train_dataset")
        data = data.repeat()
        if args.train_sampling_strategy != "sequential":
            data = data.shuffle(self.num_train_examples, seed=args.seed)
        batches = data.batch(self.total_train_batch_size, drop_remainder=args.dataloader_drop_last)
        # -1 is tf.data.AUTOTUNE.
        return args.strategy.experimental_distribute_dataset(batches.prefetch(-1))

    def get_eval_tfdataset(self, eval_dataset: Any = None) -> tuple[Any, int, int]:
        """Return the evaluation batches; no sample is repeated to fill the last batch.

        Args:
            eval_dataset: a dataset, or the name of one in a dict; by default the trainer's.

        Returns:
            The batches for all replicas, their number, and the number of samples. A number that is
            unknown is -1.

        Raises:
            ValueError: no data was passed, or its length is unknown.
        """
        if eval_dataset is None:
            eval_dataset = self.eval_dataset
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        if eval_dataset is None:
            raise ValueError(
                "Evaluation needs data: pass eval_dataset=... to the TFTrainer, or to evaluate()."
            )
        return self.get_test_tfdataset(eval_dataset)

    def get_test_tfdataset(self, test_dataset: Any) -> tuple[Any, int, int]:
        """Return the prediction batches, see `get_eval_tfdataset`.

        Args:
            test_dataset: the samples.

        Returns:
            The batches for all replicas, their number, and the number of samples. A number that is
            unknown is -1.
        """
        if not is_tensorflow_dataset(test_dataset):
            loader = Trainer.get_test_dataloader(self._engine, as_dataset(test_dataset))
            if not has_length(test_dataset):
                return loader, -1, -1
            return loader, len(loader), len(test_dataset)

        count = require_cardinality(test_dataset, "the dataset")
        batch_size = self.args.eval_batch_size
        batches = test_dataset.batch(batch_size).prefetch(-1)
        batches = self.args.strategy.experimental_distribute_dataset(batches)
        return batches, math.ceil(count / batch_size), count

    # --- the optimizer

    optimizer: Any = forwarded(
        "_engine.optimizer", "Torch's optimizer; None before it is created.", writable=True
    )
    lr_scheduler: Any = forwarded(
        "_engine.lr_scheduler", "Torch's schedule of learning rates.", writable=True
    )

    def parameters(self) -> list[Any]:
        """Return the parameters of the trainable variables, in order, for a torch optimizer."""
        return self._engine.model.variables()

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create the optimizer and its learning rate scheduler.

        The defaults are Adam as Keras computes it, with decoupled weight decay, and a polynomial
        decay after a linear warm-up. The training arguments may name others.

        An override sets `self.optimizer` and `self.lr_scheduler` to torch objects.

        Args:
            num_training_steps: optimizer steps of the whole training.
        """
        Trainer.create_optimizer_and_scheduler(self._engine, num_training_steps)

    # --- steps

    def run_model(self, features: Any, labels: object, training: bool) -> tuple[Any, Any]:
        """Compute the loss of each sample, and the logits.

        Called by `compute_loss`.

        Args:
            features: the features of a batch, as tensors of the model's library.
            labels: the labels of that batch. If the model's `call` accepts labels, a dict is passed
                as keyword arguments.
            training: whether dropout is on.
        """
        return losses_and_logits(self.model, features, labels, training)

    def compute_loss(self, features: Any, labels: object, training: bool) -> tuple[Any, Any]:
        """Return the loss of each sample and the logits, by default those of `run_model`.

        Override this to change the loss. The documentation of transformers lists it beside
        `run_model`, although no version has it.

        Args:
            features: the features of a batch, as tensors of the model's library.
            labels: the labels of that batch.
            training: whether dropout is on.
        """
        return self.run_model(features, labels, training)

    def training_step(
        self, features: Any, labels: object, nb_instances_in_global_batch: Any
    ) -> Any:
        """Compute the loss of one micro-batch and its gradients.

        Called by `apply_gradients`.

        Args:
            features: the features of the micro-batch of this replica.
            labels: the labels of that batch.
            nb_instances_in_global_batch: labels other than -100 in the whole step, over all
                replicas.

        Returns:
            A gradient for each trainable variable, including the gradients of earlier micro-batches
            of the step. An override that calls this method may change and return its result, which
            replaces the gradients so far. An override that computes gradients itself returns those
            of its micro-batch, which are added. An override may return None if the parameters
            already have their gradients.
        """
        engine = self._engine
        module = engine.model
        module.train()
        labels = module.to_torch(labels)

        # The wrapper of the strategy exchanges gradients between processes.
        wrapped_module = engine.accelerator.strategy.forward_model_of(module)
        losses, _ = wrapped_module(module.to_torch(features), labels)
        loss = summed_loss(losses, labels) / module.to_torch(nb_instances_in_global_batch)

        # The processes average their gradients, but the gradient of the step is their sum. So
        # multiply the loss by the number of processes.
        self._backward_ran = True
        loss_to_differentiate = loss
        if engine.world_size > 1:
            loss_to_differentiate = loss * engine.world_size
        engine.accelerator.backward(loss_to_differentiate)
        self.train_loss.update_state(loss)
        return [variable.grad for variable in module.variables()]

    def apply_gradients(
        self, features: Any, labels: object, nb_instances_in_global_batch: Any
    ) -> None:
        """Pass the gradients of `training_step` to the optimizer, for one micro-batch.

        During a training, Lightning calls the optimizer after all micro-batches of the step. If a
        script calls this method itself, the optimizer step is taken here.

        Args:
            features: the features of the micro-batch of this replica.
            labels: the labels of that batch.
            nb_instances_in_global_batch: labels other than -100 in the whole step, over all
                replicas.
        """
        self._backward_ran = False
        has_override = is_overridden(self, TFTrainer, "training_step")
        if has_override:
            self._engine.model.write_variables()
        gradients = self.training_step(features, labels, nb_instances_in_global_batch)
        if has_override:
            self._engine.set_gradients(gradients, add=not self._backward_ran)
        if not self._engine.is_in_train:
            self.optimizer.step()
            self._engine.model.constrain()
            self.optimizer.zero_grad()

    def distributed_training_steps(self, batch: tuple[Any, Any]) -> None:
        """Call `apply_gradients` for the replica of this process.

        Args:
            batch: features and labels of one micro-batch.
        """
        self.args.strategy.run(self.apply_gradients, (*batch, self._instances(batch)))

    def prediction_step(
        self, features: Any, labels: object, nb_instances_in_global_batch: Any
    ) -> Any:
        """Compute the logits of one batch, and add its loss to `eval_loss`.

        Args:
            features: the features of the batch of this replica.
            labels: the labels of that batch.
            nb_instances_in_global_batch: number of labels other than -100 in that batch.
        """
        module = self._engine.model
        module.eval()
        labels = module.to_torch(labels)
        with torch.no_grad():
            losses, logits = module(module.to_torch(features), labels)
        loss = summed_loss(losses, labels) / module.to_torch(nb_instances_in_global_batch)
        self.eval_loss.update_state(loss)
        return logits

    def distributed_prediction_steps(self, batch: tuple[Any, Any]) -> Any:
        """Call `prediction_step` for the replica of this process.

        Args:
            batch: features and labels of one batch.

        Returns:
            The logits.
        """
        return self.args.strategy.run(self.prediction_step, (*batch, self._instances(batch)))

    def prediction_loop(
        self,
        dataset: Any,
        steps: int,
        num_examples: int,
        description: str,
        prediction_loss_only: bool | None = None,
    ) -> PredictionOutput:
        """Predict batches and compute metrics; each sample counts once.

        Args:
            dataset: yields batches of (features, labels), as `get_eval_tfdataset` returns them.
            steps: number of batches; -1 for all.
            num_examples: number of samples in these batches; -1 if unknown.
            description: `Evaluation` or `Prediction`. The latter keeps the predictions even without
                `compute_metrics`.
            prediction_loss_only: True to keep only the loss; None for the training argument of the
                same name.

        Returns:
            Predictions, labels, and metrics, whose names begin with `eval_`.
        """
        self._prepare()
        loader = self._engine.evaluation_loader(dataset, steps, num_examples)
        return self._engine.loop_as_trainer(loader, description, prediction_loss_only)

    # --- train, evaluate, predict, save

    def train(self, resume_from_checkpoint: str | bool | None = None) -> TrainOutput:
        """Train the model, resuming from the newest checkpoint in `output_dir` if there is one.

        Args:
            resume_from_checkpoint: another checkpoint to resume from; False starts from scratch.

        Returns:
            Steps taken, mean training loss, and metrics.

        Raises:
            ValueError: the training data is missing, the model cannot be built, or the checkpoint
                belongs to another model.
            NotImplementedError: arguments or overrides cannot be combined.
        """
        if resume_from_checkpoint is None:
            folder = str(self.args.output_dir)
            has_folder = os.path.isdir(folder)
            resume_from_checkpoint = has_folder and get_last_checkpoint(folder) is not None
        check_steps(self, TFTrainer)
        check_dataset(self.train_dataset, "train_dataset", self.args)
        self._prepare(self.train_dataset)
        try:
            return self._engine.train(resume_from_checkpoint=resume_from_checkpoint)
        finally:
            self._engine.model.write_variables()

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Evaluate the model, and log the metrics of `prediction_loop`.

        Args:
            eval_dataset: a dataset, a dict of them, or the name of one; by default the trainer's.

        Returns:
            The metrics, whose names begin with `eval_`.
        """
        data = eval_dataset
        if data is None:
            data = self.eval_dataset
        self._prepare(*_datasets_by_name("eval_dataset", data).values())
        return self._engine.evaluate_as_trainer(eval_dataset)

    def predict(self, test_dataset: Any) -> PredictionOutput:
        """Predict a dataset, and compute metrics if it has labels.

        Args:
            test_dataset: the samples.

        Returns:
            Predictions, labels, and metrics, whose names begin with `eval_`.
        """
        check_dataset(test_dataset, "test_dataset", self.args)
        self._prepare(test_dataset)
        return self._engine.predict(test_dataset, metric_key_prefix="eval")

    def log(self, logs: dict[str, float]) -> None:
        """Add values to the history, and pass them to all callbacks and the `tb_writer`.

        Args:
            logs: values by name; the epoch is added.
        """
        Trainer.log(self._engine, dict(logs))
        if self.tb_writer is None or not self._engine.is_world_process_zero():
            return
        if hasattr(self.tb_writer, "add_scalar"):
            for name, value in logs.items():
                self.tb_writer.add_scalar(name, value, self.global_step)
        else:
            with self.tb_writer.as_default():
                for name, value in logs.items():
                    sys.modules["tensorflow"].summary.scalar(name, value, step=self.global_step)
        self.tb_writer.flush()

    def save_model(self, output_dir: str | None = None) -> None:
        """Save the model with its method `save_pretrained`, or with Keras if it has none.

        Keras writes `model.weights.h5`.

        Args:
            output_dir: the folder, which only the main process writes; by default that of the
                arguments.

        Raises:
            ValueError: `output_dir` is a URL instead of a folder.
        """
        if output_dir is None:
            output_dir = str(self.args.output_dir)
        folder = str(output_dir)
        require_local(folder, "output_dir")
        self._engine.model.write_variables()
        if self.args.should_save:
            os.makedirs(folder, exist_ok=True)
            self._engine.model.save(Path(folder))

    def setup_wandb(self) -> None:
        """Open a Weights & Biases run; called for `report_to="wandb"`."""
        self._open_run(WandbCallback)

    def setup_comet(self) -> None:
        """Open a Comet experiment; called for `report_to="comet_ml"`."""
        self._open_run(CometCallback)

    # --- the state of the training

    state: TrainerState = forwarded("_engine.state", "The state of the training.")
    control: TrainerControl = forwarded("_engine.control", "The switches that callbacks set.")
    global_step: int = forwarded("state.global_step", "Optimizer steps taken.")

    @property
    def epoch_logging(self) -> float:
        """Return the number of completed epochs, as a fraction."""
        return self.state.epoch or 0.0

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback] | Callback) -> None:
        """Add a callback, see `Trainer.add_callback`.

        Args:
            callback: the callback, or a class that is instantiated without arguments.
        """
        self._engine.add_callback(callback)

    def pop_callback(
        self, callback: TrainerCallback | type[TrainerCallback] | Callback | type[Callback]
    ) -> TrainerCallback | Callback | None:
        """Remove a callback, and return it.

        Args:
            callback: the callback, or its class.

        Returns:
            The removed callback, or None if the Trainer does not have it.
        """
        return self._engine.pop_callback(callback)

    def remove_callback(
        self, callback: TrainerCallback | type[TrainerCallback] | Callback | type[Callback]
    ) -> None:
        """Remove a callback, see `Trainer.remove_callback`.

        Args:
            callback: the callback, or its class.

        Raises:
            ValueError: the Trainer does not have this instance.
        """
        self._engine.remove_callback(callback)

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process of all machines, which writes files."""
        return self._engine.is_world_process_zero()

    # --- helpers

    def _compute(self, features: Any, labels: object, training: bool) -> tuple[Any, Any]:
        """Call `compute_loss`, looked up on each call because a script may replace it."""
        return self.compute_loss(features, labels, training)

    def _instances(self, batch: tuple[Any, Any]) -> Any:
        """Return the number of labels other than -100 in the training step, or in the batch."""
        engine = self._engine
        instances = engine.instances
        if instances is None:
            _, labels = batch
            instances = count_instances(engine.model.to_torch(labels))
        return engine.model.to_keras(instances)

    def _prepare(self, *datasets: Any) -> None:
        """Pass changed arguments, data and weights to the engine, and build an unbuilt model."""
        if self._engine.is_in_train:
            return
        engine = self._engine
        self.args.check()
        engine.args = self.args.of_one_process()
        engine.train_dataset = _readable(self.train_dataset)
        engine.eval_dataset = _readable(self.eval_dataset)
        engine.compute_metrics = self.compute_metrics
        engine.model.read_variables()

        if not engine.model.is_built:
            collator = PairCollator(self.args.label_names)
            build(engine.model, [*datasets, self.train_dataset], collator)
            engine._move_model_to_device(engine.model, engine.args.device)

    def _set_up_trackers(self) -> None:
        """Call `setup_wandb` and `setup_comet`, if `report_to` names them."""
        trackers = self.args.report_to or ()
        if "wandb" in trackers:
            self.setup_wandb()
        if "comet_ml" in trackers:
            self.setup_comet()

    def _open_run(self, tracker_class: type[WandbCallback] | type[CometCallback]) -> None:
        """Open the run of a tracker, and add its callback if it is missing."""
        engine = self._engine
        callbacks = engine.callback_handler.callbacks
        if not any(isinstance(callback, tracker_class) for callback in callbacks):
            engine.add_callback(tracker_class)
        trackers: list[Any] = []
        for callback in engine.callback_handler.callbacks:
            if isinstance(callback, tracker_class):
                trackers.append(callback)
        trackers[0].setup(engine.args, engine.state, engine.model)


def _datasets_by_name(argument: str, data: object) -> dict[str, Any]:
    """Return the datasets by the names that error messages use for them."""
    if isinstance(data, dict):
        return {f"{argument}[{name!r}]": dataset for name, dataset in data.items()}
    return {argument: data}


def _readable(data: object) -> Any:
    """Return data in a form that the engine reads: `tf.data` datasets, or datasets of pairs."""
    if isinstance(data, dict):
        return {name: _readable(dataset) for name, dataset in data.items()}
    if is_tensorflow_dataset(data):
        return data
    return as_dataset(data)
