"""A model that computes in TensorFlow, as a torch module; with `make test-tf`, where Keras
computes in TensorFlow.
"""

import numpy as np
import pytest
import torch

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed; run `make test-tf`")
keras = pytest.importorskip("keras", reason="keras is not installed")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras computes in torch here: `make test-tf`", allow_module_level=True)

from lightrainer.lightning_modules.keras.tensorflow_model import TensorFlowModule
from lightrainer.lightning_modules.keras.tensorflow_tensors import to_tensorflow, to_torch
from lightrainer.lightning_modules.keras.wrapping import wrap_keras_model

# 2026-11: TensorFlow 2.21 asks numpy for a copy in its old way.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

X = torch.from_numpy(np.random.RandomState(0).standard_normal((6, 3)).astype("float32"))
Y = torch.arange(6) % 4


def network(*more):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(5), *more, keras.layers.Dense(4)]
    )


def wrapped(model, weight=1.0, **options):
    def compute(features, labels, training):
        logits = model(features, training=training)
        return (
            weight * keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
            logits,
        )

    return wrap_keras_model(model, compute, **options)


def native_gradients(model, x=X, y=Y):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(
            y.numpy(), model(x.numpy()), from_logits=True
        )
        loss = tf.reduce_mean(losses)
    return [
        tf.convert_to_tensor(gradient).numpy()
        for gradient in tape.gradient(loss, model.trainable_weights)
    ]


def backward(module, x=X, y=Y):
    module.zero_grad()
    losses, _ = module(x, y)
    losses.mean().backward()
    return [parameter.grad.numpy().copy() for parameter in module.variables()]


def close(ours, theirs):
    return len(ours) == len(theirs) and all(
        np.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("xla", [False, True])
def test_gradients_are_those_of_tensorflow_for_any_batch(xla):
    module = wrapped(network(), xla=xla)
    for rows in (6, 4, 1):
        assert close(
            backward(module, X[:rows], Y[:rows]),
            native_gradients(module.model, X[:rows], Y[:rows]),
        )
    assert not close(backward(module), native_gradients(module.model, X[:5], Y[:5]))


@pytest.mark.parametrize("through", ["in place", "data", "another tensor", "misaligned"])
def test_tensorflow_computes_with_what_torch_wrote(through):
    module = wrapped(network())
    backward(module)
    kernel = module.variables()[0]
    with torch.no_grad():
        if through == "in place":
            kernel.mul_(2)
        elif through == "data":  # which no version of the tensor tells of
            kernel.data.mul_(2)
        elif through == "another tensor":
            kernel.data = kernel.data * 2
        else:
            kernel.data = torch.zeros(kernel.numel() + 1)[1:].view_as(kernel) + 0
            kernel.data = torch.cat([torch.zeros(1), kernel.flatten() + 0.5])[1:].view_as(kernel)
            assert kernel.data_ptr() % 64
    ours = backward(module)
    assert np.array_equal(module.model.trainable_weights[0].numpy(), kernel.detach().numpy())
    assert close(ours, native_gradients(module.model))


def test_tensorflow_model_read_variables_takes_over_assigned_values():
    module = wrapped(network())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = module.model.trainable_weights[0].numpy().copy()
    gradient = backward(module)[0]
    optimizer.step()
    module.write_variables()
    assert np.allclose(
        module.model.trainable_weights[0].numpy(), before - 0.1 * gradient, atol=1e-7
    )
    held = module.variables()[0]
    module.model.trainable_weights[0].assign(before)
    module.read_variables()
    assert module.variables()[0] is held  # as the optimizer holds it
    assert np.array_equal(held.detach().numpy(), before)
    module.write_variables()
    module.model.trainable_weights[0].assign(before + 1)
    assert np.array_equal(next(iter(module.state_dict().values())).numpy(), before + 1)


def test_statistics_and_seeds_are_in_the_state():
    """A module with the state of another continues as that one does: means, variances, and the
    masks of dropout.
    """
    layers = lambda: (keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5))
    source, target = wrapped(network(*layers())), wrapped(network(*layers()))
    for _ in range(3):
        source(X, Y)
    buffers = dict(source.named_buffers())
    assert any("moving_mean" in name for name in buffers)
    assert any("seed" in name for name in buffers)
    mean = next(value for name, value in buffers.items() if "moving_mean" in name)
    assert np.array_equal(mean.numpy(), source.model.layers[1].moving_mean.numpy())
    target.load_state_dict(source.state_dict())
    for _ in range(2):
        assert torch.equal(source(X, Y)[0], target(X, Y)[0])
    assert list(source.state_dict()) == list(target.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )
    source.eval(), target.eval()
    with torch.no_grad():
        assert torch.equal(source(X, Y)[1], target(X, Y)[1])


def test_frozen_layers_are_buffers_and_have_no_gradient():
    module = wrapped(network())
    module(X, Y)
    module.model.layers[0].trainable = False
    module.read_variables()
    assert [name for name, _ in module.named_parameters()] == [
        "sequential/dense_1/kernel",
        "sequential/dense_1/bias",
    ]
    assert close(backward(module), native_gradients(module.model))
    module.model.layers[0].trainable = True
    module.read_variables()
    assert close(backward(module), native_gradients(module.model))


def test_gradients_that_tensorflow_gives_one_memory_are_apart():
    class Sum(tf.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = tf.Variable([1.0, 2.0], name="a"), tf.Variable([3.0, 4.0], name="b")

        def call(self, x):
            return x

    model = Sum()
    module = TensorFlowModule(
        model, lambda features, labels, training: (model.a + model.b, features)
    )
    for _ in range(2):  # a constant of the graph would be another one the second time
        a, b = (backward(module) and parameter.grad for parameter in module.variables())
        a.mul_(100)
        assert b.tolist() == [0.5, 0.5]


def test_tensorflow_model_trains_an_embedding():
    """TensorFlow goes over to copies of a variable whose rows are looked up, at the first time."""
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Embedding(9, 3), keras.layers.Flatten()]
    )
    model.add(keras.layers.Dense(4))
    module, ids, classes = wrapped(model), torch.tensor([[1, 2], [2, 3]]), torch.tensor([0, 1])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        ours = backward(module, ids, classes)
        assert ours[0].shape == (9, 3)
        assert close(ours, native_gradients(model, ids, classes))
        optimizer.step()
    module.write_variables()
    for variable, parameter in zip(model.trainable_weights, module.variables(), strict=True):
        assert np.array_equal(variable.numpy(), parameter.detach().numpy())


def test_tensorflow_model_keeps_tables_written_by_a_graph():
    class Counting(tf.Module):
        def __init__(self):
            super().__init__()
            self.scale = tf.Variable([2.0, 1.0], name="scale")
            self.seen = tf.Variable(tf.zeros(4), trainable=False, name="seen")

        def call(self, x):
            counts = tf.gather(self.seen, x)
            self.seen.scatter_add(tf.IndexedSlices(tf.ones_like(counts), x))
            return counts

    model = Counting()
    module = TensorFlowModule(model, lambda x, y, training: (model.scale * (model.call(x) + 1), x))
    for number in range(3):
        backward(module, torch.tensor([1, 3]), None)
        assert module.state_dict()["seen"].tolist() == [0.0, number + 1.0, 0.0, number + 1.0]


def test_tensorflow_model_keeps_values_assigned_between_steps():
    module = wrapped(network())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    backward(module)
    optimizer.step()
    kernel = module.model.trainable_weights[0]
    kernel.assign(kernel * 0 + 0.25)
    assert close(backward(module), native_gradients(module.model))
    assert np.unique(kernel.numpy()).tolist() == [0.25]
    assert module.variables()[0].unique().tolist() == [0.25]
    optimizer.step()
    backward(module)
    assert len(np.unique(kernel.numpy())) > 1
    assert np.array_equal(kernel.numpy(), module.variables()[0].detach().numpy())


def test_tensorflow_model_loss_scale_keeps_small_float16_gradients():
    """The scale of the last step is that of the next one's gradients, so that they are no zeros
    in float16.
    """
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.Dense(5),
                keras.layers.Dense(4, dtype="float32"),
            ]
        )
        module = wrapped(model, weight=1e-8)
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    magnitudes = []
    for _ in range(2):
        module.zero_grad()
        (module(X, Y)[0].mean() * 2.0**24).backward()
        magnitudes.append(module.variables()[0].grad.abs().sum().item())
    assert magnitudes[0] == 0
    assert magnitudes[1] > 0


def test_losses_are_weighed_in_tensorflow_only():
    module = wrapped(network())
    losses, predictions = module(X, Y)
    assert not predictions.requires_grad
    with pytest.raises(ValueError, match="weight them in compute_loss"):
        (losses * torch.arange(6.0)).sum().backward()


def test_tensorflow_model_is_built_by_its_first_batch():
    model = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(4)])
    module = wrapped(model)
    assert not module.is_built
    module.build(X[:1], Y[:1])
    assert module.is_built
    assert close(backward(module), native_gradients(model))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64]
)
def test_tensors_go_both_ways(dtype):
    for tensor in (
        torch.ones(5),
        torch.ones(5, 3).t(),
        torch.ones(9)[1:],
        torch.tensor(1.0),
        torch.ones(0, 2),
    ):
        tensor = tensor.to(dtype)
        assert torch.equal(to_torch(to_tensorflow(tensor)), tensor)
    assert to_torch(None) is None
