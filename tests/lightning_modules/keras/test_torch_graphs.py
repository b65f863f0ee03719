"""Recorded calls of torch in place of Keras's Python: the same numbers, and a model of others is always called."""

import pytest
import torch
from packaging.version import Version

keras = pytest.importorskip("keras", reason="keras is not installed")
if keras.backend.backend() != "torch":
    pytest.skip("Keras computes in TensorFlow here", allow_module_level=True)

from keras import layers

from lightrainer.lightning_modules.keras.losses import losses_and_logits
from lightrainer.lightning_modules.keras.torch_model import TorchKerasModule

STEPS = 6
FLAT, SEQUENCE, IMAGE, TOKENS = (6,), (5, 6), (8, 8, 3), (7,)


def residual(x):
    return layers.Add()([x, layers.Dense(6, activation="gelu")(x)])


def attention(x):
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True)
    return layers.Flatten()(layers.LayerNormalization()(x))


def masked(x):
    return layers.GlobalAveragePooling1D()(layers.Embedding(9, 6, mask_zero=True)(x))


def functions_of_keras(x):
    return keras.ops.concatenate([keras.ops.square(x), keras.ops.sum(x, axis=-1, keepdims=True)], axis=-1)


def dense(**options):
    return lambda x: layers.Dense(6, **options)(x)


RECORDED = {
    "dense": (FLAT, dense(activation="relu")),
    "residual": (FLAT, residual),
    "dropout": (FLAT, lambda x: layers.Dropout(0.5)(x)),
    "batch normalization": (FLAT, lambda x: layers.BatchNormalization()(dense()(x))),
    "group and unit normalization": (FLAT, lambda x: layers.UnitNormalization()(layers.GroupNormalization(2)(x))),
    "regularization": (FLAT, dense(kernel_regularizer="l2", activity_regularizer="l1", kernel_constraint="max_norm")),
    "functions of keras": (FLAT, functions_of_keras),
    "attention": (SEQUENCE, attention),
    "recurrent": (SEQUENCE, lambda x: layers.Bidirectional(layers.LSTM(4))(layers.GRU(3, return_sequences=True)(x))),
    "each step in time": (SEQUENCE, lambda x: layers.Flatten()(layers.TimeDistributed(layers.Dense(2))(x))),
    "images": (IMAGE, lambda x: layers.Flatten()(layers.MaxPooling2D()(layers.Conv2D(4, 3, activation="elu")(x)))),
    "embedding with a mask": (TOKENS, masked),
}
"""What each kind of layer computes is recorded."""


class Doubled(layers.Layer):
    def call(self, x):
        return x * 2


CALLED = {
    "a layer of somebody": (FLAT, lambda x: Doubled()(x)),
    "a function of somebody": (FLAT, lambda x: layers.Lambda(lambda value: value * 2)(x)),
    "an activation of somebody": (FLAT, lambda x: layers.Dense(6, activation=lambda value: value * 2)(x)),
    "a module of torch": (FLAT, lambda x: layers.TorchModuleWrapper(torch.nn.Tanh(), output_shape=(None, 6))(x)),
    "a generator with a seed": (FLAT, lambda x: layers.Dropout(0.5, seed=3)(x)),
    "noise": (FLAT, lambda x: layers.GaussianNoise(0.1)(x)),
}
"""May do more than to call torch, or Python looks at values."""


def network(shape, middle, seed=3, **options):
    keras.utils.set_random_seed(seed)
    start = layers.Input(shape, dtype="int32" if shape is TOKENS else "float32")
    model = keras.Model(start, layers.Dense(3, **options)(middle(start)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def batch(shape, number, rows=4):
    generator = torch.Generator().manual_seed(number)
    x = torch.randint(0, 9, (rows, *shape), generator=generator) if shape is TOKENS else None
    x = torch.randn(rows, *shape, generator=generator) if x is None else x
    return x, torch.randint(0, 3, (rows,), generator=generator)


class Training:
    """Steps by hand, which count how often the model was called."""

    def __init__(self, model, *, recorded=True):
        self.calls = 0
        self.module = TorchKerasModule(model, self.compute, lambda: recorded).train()
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def compute(self, features, labels, training):
        self.calls += 1
        return losses_and_logits(self.module.model, features, labels, training)

    def step(self, features, labels):
        losses, predictions = self.module(features, labels)
        losses.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.module.constrain()
        return [losses.detach(), predictions.detach()]

    def run(self, shape, steps=STEPS):
        torch.manual_seed(5)
        seen = [value for number in range(steps) for value in self.step(*batch(shape, number))]
        return [*seen, *(value.clone() for value in self.module.state_dict().values()), torch.get_rng_state()]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


LOOKS_AT_VALUES = {"recurrent"} if Version(keras.__version__) < Version("3.15") else set()
"""What is called for each batch with an older Keras, whose recurrent layers ask for the values of a mask."""


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_calls_train_as_the_model_does(name):
    """Losses, predictions, weights, states and random numbers, bit for bit; evaluated as well."""
    shape, middle = RECORDED[name]
    called, recorded = (Training(network(shape, middle), recorded=recorded) for recorded in (False, True))
    assert same(called.run(shape), recorded.run(shape))
    assert (called.calls, recorded.calls) == (STEPS, STEPS if name in LOOKS_AT_VALUES else 2)
    before = recorded.calls
    for training in (called, recorded):
        training.module.eval()
    with torch.no_grad():
        for number in range(4):
            left, right = called.module(*batch(shape, number)), recorded.module(*batch(shape, number))
            assert same(left, right)
    assert recorded.calls - before == (4 if name in LOOKS_AT_VALUES else 2)


@pytest.mark.parametrize(("shape", "middle"), CALLED.values(), ids=CALLED)
def test_a_model_with_code_of_others_is_called(shape, middle):
    training = Training(network(shape, middle))
    training.run(shape)
    assert training.calls == STEPS


def test_each_kind_of_batch_and_precision_has_calls_of_its_own():
    training, plain = Training(network(FLAT, dense())), Training(network(FLAT, dense()), recorded=False)
    for rows in (4, 2, 4, 2, 4, 2):
        assert same(training.step(*batch(FLAT, rows, rows)), plain.step(*batch(FLAT, rows, rows)))
    assert training.calls == 4
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert same(training.step(*batch(FLAT, 4)), plain.step(*batch(FLAT, 4)))
    assert training.calls == 6


def changed_rate(model):
    model.layers[1].rate = 0.25


def changed_penalty(model):
    model.layers[2].kernel_regularizer.l2 = 0.5


def changed_loss(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1))


@pytest.mark.parametrize("change", [changed_rate, changed_penalty, changed_loss])
def test_what_somebody_changes_is_recorded_anew(change):
    def middle(x):
        return layers.Dense(6, kernel_regularizer="l2")(layers.Dropout(0.5)(x))

    called, recorded = (Training(network(FLAT, middle), recorded=recorded) for recorded in (False, True))
    assert same(called.run(FLAT), recorded.run(FLAT))
    for training in (called, recorded):
        change(training.module.model)
    assert same(called.run(FLAT), recorded.run(FLAT))
    assert recorded.calls == 4


def test_code_of_others_that_comes_later_is_called():
    training, heard = Training(network(FLAT, dense(activation="relu"))), []
    training.run(FLAT)

    def activation(value):
        heard.append(1)
        return value

    training.module.model.layers[1].activation = activation
    training.run(FLAT)
    assert (training.calls, len(heard)) == (2 + STEPS, STEPS)


def test_a_hook_is_called():
    training, heard = Training(network(FLAT, dense())), []
    training.run(FLAT, 3)
    handle = training.module.model.layers[1].register_forward_hook(lambda *_: heard.append(1))
    training.run(FLAT, 3)
    assert (len(heard), training.calls) == (3, 5)
    handle.remove()
    training.run(FLAT, 3)
    assert (len(heard), training.calls) == (3, 5)


def test_calls_that_would_give_other_values_are_not_made(monkeypatch):
    """Something that nobody records: the second batch tells."""
    drawn = iter(range(1, 100))
    training = Training(network(FLAT, dense()))
    inner = training.compute
    monkeypatch.setattr(training.module, "compute", lambda *given: (inner(*given)[0] * next(drawn), None))
    torch.manual_seed(5)
    losses = [training.module(*batch(FLAT, 0))[0].detach() for _ in range(4)]
    assert training.calls == 4
    assert same([losses[0] * factor for factor in (1, 2, 3, 4)], losses)
