"""Trainings that ran with the TFTrainer of transformers 4: models that hold in Keras 2 and 3,
weights, data, arguments.

Everything is drawn by `numpy.random.RandomState`, whose numbers are the same in every version of
numpy.
"""

import keras
import numpy as np

FEATURES, HIDDEN, CLASSES, LENGTH = 6, 8, 3, 5
IGNORED = -100


class Classifier(keras.Model):
    """Returns what models of transformers 4 return: the loss of each sample, if there are
    labels, and the logits.
    """

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(HIDDEN, activation="tanh", name="hidden")
        self.norm = keras.layers.LayerNormalization(name="LayerNorm")
        self.head = keras.layers.Dense(CLASSES, name="head")

    def call(self, inputs, labels=None, training=False):
        logits = self.head(self.norm(self.hidden(inputs["x"]), training=training))
        return (logits,) if labels is None else (self.losses_of(labels, logits), logits)

    def losses_of(self, labels, logits):
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


class Normalized(Classifier):
    """With statistics, which are weights but no parameters."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization(momentum=0.9, name="statistics")


class Tagger(Classifier):
    """A class for each step of a sequence; steps whose label is -100 do not count."""

    def losses_of(self, labels, logits):
        return keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True, ignore_class=IGNORED
        )


class TwoLabels(Classifier):
    """Labels that are a dict become keyword arguments."""

    def call(self, inputs, start=None, end=None, training=False):
        outputs = super().call(inputs, start, training)
        return (
            outputs
            if start is None
            else (outputs[0] + self.losses_of(end, -outputs[1]), outputs[1])
        )


# Each with what it has beside the defaults. All evaluate in whole batches but one, as the original
# repeats samples to fill the last one. It cannot evaluate labels that are a dict.
SCENARIOS = {
    "plain": (Classifier, {}),
    "decayed": (
        Classifier,
        {
            "weight_decay": 0.1,
            "warmup_steps": 10,
            "poly_power": 2.0,
            "evaluation_strategy": "steps",
            "adam_beta2": 0.98,
        },
    ),
    "accumulated": (Classifier, {"gradient_accumulation_steps": 2, "max_grad_norm": 1e9}),
    "clipped": (Classifier, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.01}),
    "statistics": (Normalized, {"warmup_ratio": 0.1}),
    "tokens": (Tagger, {"weight_decay": 0.01, "adam_epsilon": 1e-6}),
    "dict": (
        TwoLabels,
        {"per_device_train_batch_size": 4, "max_steps": 40, "logging_first_step": True},
    ),
    "ragged": (Classifier, {"per_device_eval_batch_size": 7, "dataloader_drop_last": False}),
}
SAMPLES = {"train": 196, "eval": 48, "test": 24}


def numbers(scenario, part):
    """The features and labels of one part of the data, as arrays."""
    state = np.random.RandomState([*map(ord, part)])
    kind = SCENARIOS[scenario][0]
    shape = (SAMPLES[part], LENGTH) if kind is Tagger else (SAMPLES[part],)
    x = state.standard_normal((*shape, FEATURES)).astype(np.float32)
    labels = (
        (x[..., :CLASSES] + 0.5 * state.standard_normal((*shape, CLASSES)))
        .argmax(-1)
        .astype(np.int32)
    )
    # which the models do not look at
    features = {"x": x, "index": np.arange(len(x), dtype=np.int32)}
    if kind is Tagger:
        labels[state.random_sample(shape) < 0.3] = IGNORED
    return features, (
        {"start": labels, "end": (labels + 1) % CLASSES} if kind is TwoLabels else labels
    )


def built_model(scenario):
    """The model of a scenario with its first weights."""
    model = SCENARIOS[scenario][0]()
    model({"x": numbers(scenario, "test")[0]["x"][:2]})
    state = np.random.RandomState(0)
    for name, variable in named_weights(model).items():
        if name.endswith("kernel"):
            shape = tuple(variable.shape)
            variable.assign((state.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))
    return model


def named_weights(model):
    """The variables of a model under names that do not depend on the version of Keras,
    parameters first.
    """
    layers = (model.hidden, model.norm, model.head)
    variables = {
        f"{layer.name}/{v.name.split(':')[0].split('/')[-1]}": v
        for layer in layers
        for v in layer.weights
    }
    assert len(variables) == len(model.weights)
    return variables


def accuracy(prediction):
    """What `compute_metrics` is in all of them."""
    labels = (
        prediction.label_ids["start"]
        if isinstance(prediction.label_ids, dict)
        else prediction.label_ids
    )
    counted = labels != IGNORED
    return {"accuracy": float((prediction.predictions.argmax(-1) == labels)[counted].mean())}
