"""Models of Keras 2, those of transformers 4 above all, trained over the bridge; with
`make test-tf`.
"""

import shutil
from typing import Any

import numpy as np
import pytest
import torch

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed; run `make test-tf`")
keras = pytest.importorskip("tf_keras", reason="tf-keras is not installed; run `make test-tf`")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if not transformers.__version__.startswith("4."):
    pytest.skip(
        "this transformers has no models of TensorFlow: `make test-tf`", allow_module_level=True
    )

from lightrainer import TFTrainer, TFTrainingArguments

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
RATE, ROWS, BATCH = 5e-3, 24, 8
IDS = np.random.RandomState(0).randint(3, 40, (ROWS, 6)).astype("int32")
FEATURES = {"input_ids": IDS, "attention_mask": (IDS != 5).astype("int32")}
CLASSES = (IDS[:, 0] % 3).astype("int64")


@pytest.fixture(autouse=True)
def _generators():
    """Have dropout of Keras 2 draw from generators with a state that can be saved."""
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


def bert(head="SequenceClassification", dropout=0.0, seed=1):
    """A tiny one, without weights until it is called."""
    keras.utils.set_random_seed(seed)
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    outputs = {"num_labels": 2 if head == "QuestionAnswering" else 3}
    config = transformers.BertConfig(**SIZES, **drop, **outputs, max_position_embeddings=8)
    return getattr(transformers, f"TFBertFor{head}")(config)


def make_trainer(folder, model, labels: Any = CLASSES, **changes):
    data = tf.data.Dataset.from_tensor_slices((FEATURES, labels))
    defaults = {
        "learning_rate": RATE,
        "adam_epsilon": 1e-7,
        "num_train_epochs": 3,
        "logging_steps": 1,
        "use_cpu": True,
    }
    quiet = {
        "disable_tqdm": True,
        "log_level": "error",
        "report_to": "none",
        "save_strategy": "no",
    }
    sizes = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH}
    args = TFTrainingArguments(str(folder), **{**defaults, **quiet, **sizes, **changes})
    return TFTrainer(model, args, data, data)


def logged(made):
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def furthest(left, right):
    pairs = zip(left.weights, right.weights, strict=True)
    return max(np.abs(first.numpy() - second.numpy()).max() for first, second in pairs)


def by_hand(model, steps):
    """Train with the optimizer of Keras 2, in the order of the samples; returns the losses."""
    optimizer, losses = keras.optimizers.Adam(epsilon=1e-7), []
    for step in range(steps):
        rows = slice(step * BATCH % ROWS, step * BATCH % ROWS + BATCH)
        with tf.GradientTape() as tape:
            output = model(
                {name: value[rows] for name, value in FEATURES.items()},
                labels=CLASSES[rows],
                training=True,
            )
            loss = tf.reduce_mean(output.loss)
        optimizer.learning_rate = RATE * (1 - step / steps)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return losses


def test_keras_2_classifier_trains_as_by_hand_and_is_saved(tmp_path):
    ours, theirs, fresh = (model for model in (bert(), bert(), bert()) if model(FEATURES))
    for other in (theirs, fresh):
        other.set_weights(ours.get_weights())
    trainer = make_trainer(tmp_path, ours, train_sampling_strategy="sequential")
    trainer.train()
    assert trainer.global_step == 9
    assert np.abs(np.array(logged(trainer)) - by_hand(theirs, 9)).max() < 1e-6
    assert furthest(ours, theirs) < 2e-6
    assert furthest(ours, fresh) > 1e-2, "negative control: it has learned"
    trainer.save_model(str(tmp_path / "saved"))
    again = type(ours).from_pretrained(tmp_path / "saved")
    assert furthest(ours, again) == 0
    predicted = trainer.predict(trainer.eval_dataset).predictions
    assert np.abs(again(FEATURES).logits.numpy() - predicted).max() < 1e-6
    fine = make_trainer(
        tmp_path / "fine", again, max_steps=1
    )  # loaded, it is built but for its dropout
    assert fine.evaluate()["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"], abs=1e-6)


def test_keras_2_resumption_is_exact(tmp_path):
    """With dropout: the states of its generators are in the checkpoint."""
    options = {"save_strategy": "steps", "save_steps": 4, "gradient_accumulation_steps": 2}
    whole, resumed, without = bert(dropout=0.3), bert(dropout=0.3, seed=2), bert()
    first = make_trainer(tmp_path / "whole", whole, **options, per_device_train_batch_size=2)
    first.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-8", tmp_path / "resumed" / "checkpoint-8")
    second = make_trainer(tmp_path / "resumed", resumed, **options, per_device_train_batch_size=2)
    second.train()
    assert second.global_step == 18
    assert logged(second) == logged(first)
    assert furthest(whole, resumed) == 0
    make_trainer(
        tmp_path / "without", without, gradient_accumulation_steps=2, per_device_train_batch_size=2
    ).train()
    assert furthest(whole, without) > 1e-3, "negative control: there was dropout"


SPANS = {"start_positions": CLASSES, "end_positions": CLASSES + 1}
TAGS = np.where(IDS % 4 == 3, -100, IDS % 3).astype("int64")


@pytest.mark.parametrize(
    ("head", "labels"),
    [
        ("QuestionAnswering", SPANS),
        ("TokenClassification", TAGS),
        ("TokenClassification", {"labels": TAGS}),
    ],
    ids=["keywords", "-100", "one keyword"],
)
def test_keras_2_loss_is_that_of_the_model(tmp_path, head, labels):
    model = bert(head)
    keywords = labels if isinstance(labels, dict) else {"labels": labels}
    expected = float(tf.reduce_mean(model(FEATURES, **keywords).loss))
    sizes = {"per_device_train_batch_size": ROWS // 2, "gradient_accumulation_steps": 2}
    sizes["per_device_eval_batch_size"] = ROWS
    trainer = make_trainer(
        tmp_path, model, labels, max_steps=1, train_sampling_strategy="sequential", **sizes
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-6)
    trainer.train()
    assert logged(trainer)[0] == pytest.approx(expected, abs=1e-6)


def test_keras_2_compiled_model(tmp_path):
    """By its loss; its metrics are no weights, and its weights are saved as Keras saves them."""

    def network():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        sequential = keras.Sequential(
            [keras.layers.Lambda(lambda x: tf.cast(x["input_ids"], tf.float32)), *layers]
        )
        sequential.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
        return sequential

    model, other = network(), network()
    trainer = make_trainer(tmp_path, model)
    trainer.train()
    assert logged(trainer)[-1] < logged(trainer)[0]
    trainer.save_model(str(tmp_path / "saved"))
    other(FEATURES)
    assert furthest(model, other) > 0
    other.load_weights(tmp_path / "saved" / "model.weights.h5")
    assert furthest(model, other) == 0
    names = list(dict(trainer._engine.model.named_buffers()))
    assert [name.rpartition("/")[2] for name in names] == ["moving_mean", "moving_variance"]
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in trainer.parameters())
