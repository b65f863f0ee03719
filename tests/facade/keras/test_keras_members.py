"""The documented members of a TFTrainer: callable by themselves, called by train, evaluate and
predict, overridable.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

import torch

from helpers.keras.tiny_keras import (
    Subclassed,
    furthest,
    losses,
    make_trainer,
    network,
    points,
    weights,
)
from lightrainer import PredictionOutput, TFTrainer, TrainerCallback

IN_TRAINING = (
    "get_train_tfdataset create_optimizer_and_scheduler distributed_training_steps apply_gradients"
)
IN_TRAINING = f"{IN_TRAINING} training_step compute_loss run_model log".split()
IN_EVALUATION = (
    "get_eval_tfdataset get_test_tfdataset prediction_loop distributed_prediction_steps "
    "prediction_step"
)
IN_EVALUATION = f"{IN_EVALUATION} compute_loss run_model log".split()


def counting(names):
    """A TFTrainer that counts the calls of each of its methods."""

    def counted(name):
        def method(self, *args, **kwargs):
            self.__dict__.setdefault("calls", Counter())[name] += 1
            return getattr(TFTrainer, name)(self, *args, **kwargs)

        return method

    return type("Counting", (TFTrainer,), {name: counted(name) for name in names})


def test_train_evaluate_and_predict_call_the_documented_members(tmp_path):
    trainer = make_trainer(
        tmp_path, cls=counting({*IN_TRAINING, *IN_EVALUATION, "evaluate"}), eval_strategy="epoch"
    )
    trainer.train()
    trained = trainer.calls
    assert trained.keys() >= {*IN_TRAINING}
    assert (
        trained["training_step"]
        == trained["apply_gradients"]
        == trained["distributed_training_steps"]
        == 8
    )
    assert trained["evaluate"] == trained["prediction_loop"] == 2, (
        "evaluations in a training are those of evaluate()"
    )
    trainer.calls = Counter()
    trainer.evaluate()
    trainer.predict(points(5))
    assert trainer.calls.keys() >= {*IN_EVALUATION}


def test_results_of_overrides_are_used(tmp_path):
    class Own(TFTrainer):
        def run_model(self, features, labels, training):
            loss, logits = super().run_model(features, labels, training)
            return loss * 0 + 5.0 + 0 * logits.sum(), logits + 1

        def compute_loss(self, features, labels, training):
            loss, logits = super().compute_loss(features, labels, training)
            return loss * 2, logits

        def prediction_step(self, features, labels, nb_instances_in_global_batch):
            return super().prediction_step(features, labels, nb_instances_in_global_batch) * 0

    plain, trainer = make_trainer(tmp_path), make_trainer(tmp_path, cls=Own)
    trainer.train()
    assert losses(trainer) == [10.0] * 8
    assert trainer.evaluate()["eval_loss"] == 10.0
    assert plain.evaluate()["eval_loss"] != 10.0
    assert not trainer.predict(points(5)).predictions.any()


def test_gradients_that_an_override_computes_by_itself_are_those_of_the_step(tmp_path):
    """Also over several micro-batches, and if one is missing for a variable."""

    class Own(TFTrainer):
        def training_step(self, features, labels, nb_instances_in_global_batch):
            loss, _ = self.run_model(features, labels, True)
            variables = [variable.value for variable in self.model.trainable_variables]
            return torch.autograd.grad(loss.sum() / nb_instances_in_global_batch, variables)

    models = [network(), network()]
    for kind, model in zip((TFTrainer, Own), models, strict=True):
        trainer = make_trainer(
            tmp_path,
            cls=kind,
            model=model,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=2,
        )
        trainer.train()
    assert furthest(*map(weights, models)) < 1e-7

    class TooFew(TFTrainer):
        def training_step(self, *args):
            return super().training_step(*args)[1:]

    with pytest.raises(ValueError, match="3 gradients for 4 variables"):
        make_trainer(tmp_path, cls=TooFew).train()


def test_keras_data_override_is_trained_on(tmp_path):
    """Whole steps, of any length; here of two micro-batches, repeated in each epoch."""
    x, y = (np.stack(part) for part in zip(*points(20), strict=True))

    class Own(TFTrainer):
        def get_train_tfdataset(self):
            return [(x[:8], y[:8]), (x[8:16], y[8:16])]

        def get_eval_tfdataset(self, eval_dataset=None):
            return [(x[:5], y[:5]), (x[5:7], y[5:7])], 2, 7

    class Seen(Own):
        def run_model(self, features, labels, training):
            self.__dict__.setdefault("seen", []).append((training, len(labels)))
            return super().run_model(features, labels, training)

    trainer = make_trainer(
        tmp_path, cls=Seen, train_dataset=None, eval_dataset=None, gradient_accumulation_steps=2
    )
    trainer.train()
    assert trainer.steps_per_epoch == 2
    assert trainer.global_step == 4
    assert trainer.seen == [(True, 4)] * 8
    model, trainer.seen = trainer.model, []
    expected = model.loss(torch.as_tensor(y[:7]), model(torch.as_tensor(x[:7]))).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-6)
    assert trainer.seen == [(False, 4), (False, 3)], "batches of the size that the arguments have"


def test_keras_optimizer_override_is_stepped(tmp_path):
    class Own(TFTrainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            assert num_training_steps == 8
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.25)
            self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)

    trainer, model = make_trainer(tmp_path, cls=Own), network()
    trainer.train()
    assert trainer.state.log_history[0]["learning_rate"] == 0.25
    sgd = torch.optim.SGD([variable.value for variable in model.trainable_variables], lr=0.0)
    make_trainer(tmp_path, model=model, optimizers=(sgd, None)).train()
    assert furthest(weights(model), weights(network())) == 0, (
        "an optimizer that is passed in is used"
    )


def test_members_can_be_called_by_themselves(tmp_path):
    """A custom loop over the steps of the trainer is its training."""
    trainer, model = make_trainer(tmp_path), network()
    trainer.create_optimizer_and_scheduler(4)
    batches = [
        tuple(torch.as_tensor(np.stack(part)) for part in zip(*points(16)[i : i + 4], strict=True))
        for i in (0, 4)
    ]
    for batch in batches:
        trainer.distributed_training_steps(batch)
    sequential = {
        "train_sampling_strategy": "sequential",
        "max_steps": 2,
        "lr_scheduler_type": "constant",
    }
    make_trainer(tmp_path, model=model, **sequential).train()
    assert furthest(weights(trainer.model), weights(model)) < 1e-7
    logits = trainer.distributed_prediction_steps(batches[0])
    assert logits.shape == (4, 3)
    assert trainer.eval_loss.result() > 0
    dataset, steps, count = trainer.get_eval_tfdataset()
    assert (steps, count) == (2, 6)
    output = trainer.prediction_loop(dataset, steps, count, "Prediction")
    assert isinstance(output, PredictionOutput)
    assert output.predictions.shape == (6, 3)
    trainer.log({"own": 1.0})
    assert trainer.state.log_history[-1]["own"] == 1.0


def test_attributes_tell_where_a_training_stands(tmp_path):
    readings, written = [], []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            readings.append(
                (trainer.global_step, trainer.epoch_logging, float(trainer.train_loss.result()))
            )

    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: written.append((name, step)), flush=lambda: None
    )
    trainer = make_trainer(
        tmp_path, tb_writer=writer, callbacks=[Look()], gradient_accumulation_steps=2
    )
    trainer.train()
    assert (trainer.global_step, trainer.epoch_logging, trainer.steps_per_epoch) == (4, 2.0, 2)
    assert (trainer.num_train_examples, trainer.total_train_batch_size) == (16, 8)
    assert [(step, loss > 0) for step, _, loss in readings] == [
        (step, True) for step in (1, 2, 3, 4)
    ]
    trainer.evaluate()
    assert {("loss", 1), ("eval_loss", 4)} <= set(written)


def test_metrics_and_predictions(tmp_path):
    """Each sample once, in order; all metrics are called eval_, also those of predict."""

    def compute_metrics(prediction):
        return {
            "accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean(),
            "count": 7.0,
        }

    data = points(7, seed=5)
    trainer = make_trainer(
        tmp_path, eval_dataset={"one": data, "two": points(3)}, compute_metrics=compute_metrics
    )
    output = trainer.predict(data)
    x, y = (np.stack(part) for part in zip(*data, strict=True))
    expected = trainer.model(torch.as_tensor(x)).detach().numpy()
    assert np.abs(output.predictions - expected).max() < 1e-6
    assert (output.label_ids == y).all()
    assert output.metrics["eval_accuracy"] == (expected.argmax(-1) == y).mean()
    assert {name for name in output.metrics if not name.startswith("eval_")} == set()
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(output.metrics["eval_loss"])
    assert trainer.evaluate().keys() >= {"eval_one_loss", "eval_two_loss", "eval_two_accuracy"}
    only_loss = make_trainer(
        tmp_path, compute_metrics=compute_metrics, prediction_loss_only=True
    ).predict(data)
    assert only_loss.predictions is None


# Keras 3.15 with numpy 2
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_models_are_saved_in_the_form_of_their_library(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.save_model(str(tmp_path / "saved"))
    again = network(seed=9)
    assert furthest(weights(again), weights(trainer.model)) > 0
    again.load_weights(tmp_path / "saved" / "model.weights.h5")
    assert furthest(weights(again), weights(trainer.model)) == 0
    trainer.model.save_pretrained = lambda folder: Path(folder, "own").write_text("by the instance")
    trainer.save_model()
    assert not (tmp_path / "own").exists(), "the class decides, as for models of torch"
    assert (tmp_path / "model.weights.h5").exists()


def test_keras_class_that_saves_itself_receives_the_folder(tmp_path):
    class SavesItself(Subclassed):
        def save_pretrained(self, folder: str) -> None:
            assert isinstance(folder, str)
            Path(folder, "own").write_text("by the model")

    make_trainer(tmp_path, model=SavesItself()).save_model()
    assert (tmp_path / "own").read_text() == "by the model"
    assert not (tmp_path / "model.weights.h5").exists()


def test_keras_unbuilt_model_is_built_from_the_data(tmp_path):
    """Before its optimizer is made; it trains all of its weights, as one that was built by hand."""
    keras.utils.set_random_seed(5)
    lazy = Subclassed()
    keras.utils.set_random_seed(5)
    built = Subclassed()
    built(torch.zeros(1, 4))
    assert not lazy.weights
    for model in (lazy, built):
        make_trainer(tmp_path, model=model).train()
    assert len(lazy.trainable_variables) == 4
    assert furthest(weights(lazy), weights(built)) == 0
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    unbuilt.compile(loss="sparse_categorical_crossentropy")
    assert make_trainer(tmp_path, model=unbuilt, train_dataset=None).evaluate()["eval_loss"] > 0


def test_dropout_and_batch_statistics_are_those_of_a_training(tmp_path):
    """`train()` and `eval()` of torch do nothing to Keras: the flag is in each call."""
    flags = []

    class Flagged(keras.layers.Layer):
        def call(self, x, training=None):
            flags.append(training)
            return x

    model = network(Flagged(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    before = weights(model)
    flags.clear()
    trainer = make_trainer(tmp_path, model=model, max_steps=2)
    trainer.train()
    assert flags == [True] * 2
    assert furthest(weights(model)[4:6], before[4:6]) > 0, "moving statistics"
    flags.clear()
    statistics = weights(model)[4:6]
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"], "no dropout"
    assert set(flags) == {False}
    assert furthest(weights(model)[4:6], statistics) == 0


def test_frozen_layers_stay_as_they_are(tmp_path):
    """Also where they are frozen after the trainer was made."""
    model = network()
    trainer = make_trainer(tmp_path, model=model)
    model.layers[0].trainable = False
    before = weights(model)
    trainer.train()
    assert furthest(weights(model)[:2], before[:2]) == 0
    assert furthest(weights(model)[2:], before[2:]) > 0
