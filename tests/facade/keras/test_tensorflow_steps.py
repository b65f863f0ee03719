"""Steps that legacy scripts have written in TensorFlow themselves; with `make test-tf`."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed; run `make test-tf`")
keras = pytest.importorskip("keras", reason="keras is not installed")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras computes in torch here: `make test-tf`", allow_module_level=True)

from helpers.keras.tiny_keras import furthest, losses, make_trainer, weights
from lightrainer import TFTrainer

# 2026-11: TensorFlow 2.21, numpy's old way
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
ROWS = np.random.RandomState(1).randint(0, 9, (16, 4)).astype("int32")
DATA = [(row, row.sum() % 3) for row in ROWS]


def network():
    keras.utils.set_random_seed(3)
    body = [
        keras.layers.Embedding(9, 3),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(),
    ]
    model = keras.Sequential([keras.layers.Input((4,)), *body, keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class InATape(TFTrainer):
    def training_step(self, features, labels, nb_instances_in_global_batch):
        with tf.GradientTape() as tape:
            each, _ = self.run_model(features, labels, True)
            loss = tf.reduce_sum(each / tf.cast(nb_instances_in_global_batch, each.dtype))
        self.train_loss.update_state(loss)
        return tape.gradient(loss, self.model.trainable_variables)


@pytest.mark.parametrize("parts", [1, 2])
def test_tensorflow_step_in_a_tape_equals_the_trainer(tmp_path, parts):
    """Also where an embedding has a gradient of its rows only, and statistics move."""
    options = {"train_dataset": DATA, "eval_dataset": DATA, "gradient_accumulation_steps": parts}
    options |= {"per_device_train_batch_size": 4 // parts}
    ours, theirs = network(), network()
    trainer = make_trainer(tmp_path, model=ours, **options)
    two = make_trainer(tmp_path, cls=InATape, model=theirs, **options)
    for each_trainer in (trainer, two):
        each_trainer.train()
    assert trainer.global_step == 8
    assert np.abs(np.array(losses(trainer)) - losses(two)).max() < 1e-6
    assert furthest(weights(ours), weights(theirs)) < 2e-6
    assert furthest(weights(ours), weights(network())) > 1e-2
    assert trainer.evaluate()["eval_loss"] == pytest.approx(two.evaluate()["eval_loss"], abs=1e-6)
