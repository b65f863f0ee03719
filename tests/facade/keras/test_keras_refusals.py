"""Refuse what a TFTrainer cannot do before a training begins, with words that say what to do."""

import re
import subprocess
import sys

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

import torch

from helpers.keras.tiny_keras import Subclassed, arguments, make_trainer, network, points
from lightrainer import TFTrainer, TrainingArguments
from lightrainer.facade.keras.arguments import UNSUPPORTED


def refused(kind, *words, train=False, **given):
    """It is an error of this kind, with all of these words; nothing is trained."""

    def attempt():
        trainer = make_trainer(**given)
        if train:
            trainer.train()

    with pytest.raises(kind) as caught:
        attempt()
    for word in words:
        assert re.search(word, str(caught.value)), (word, str(caught.value))


ASKED = dict.fromkeys(
    ("activation_checkpointing", "auto_find_batch_size", "bf16_full_eval", "fp16_full_eval"), True
)
ASKED |= dict.fromkeys(("gradient_checkpointing", "torch_compile", "use_liger_kernel"), True)
ASKED |= {
    "debug": "underflow_overflow",
    "deepspeed": {},
    "fsdp": "full_shard",
    "gcp_project": "project",
}
ASKED |= {
    "include_num_input_tokens_seen": "all",
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
}
ASKED |= {"parallelism_config": object(), "tpu_name": "name", "tpu_zone": "zone"}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_arguments_without_an_effect_are_refused_by_name(tmp_path, name):
    assert ASKED.keys() == UNSUPPORTED.keys()
    args = arguments(tmp_path)
    setattr(args, name, ASKED[name])
    with pytest.raises(NotImplementedError, match=f"{name}="):
        args.check()


def test_keras_reports_all_refused_arguments_at_once(tmp_path):
    with pytest.raises(NotImplementedError, match=r"(?s)label_smoothing_factor=0\.1.*tpu_name='x'"):
        arguments(tmp_path, tpu_name="x", label_smoothing_factor=0.1)
    trainer = make_trainer(tmp_path)
    trainer.args.neftune_noise_alpha = 5.0
    for call in (trainer.train, trainer.evaluate):
        with pytest.raises(NotImplementedError, match="neftune_noise_alpha"):
            call()
    others = {
        "accelerator_config": {"split_batches": True},
        "train_sampling_strategy": "group_by_length",
    }
    for name, value in {**others, "include_for_metrics": ["inputs"]}.items():
        with pytest.raises(NotImplementedError, match=name):
            arguments(tmp_path, **{name: value})


def test_poly_power_is_a_power_of_the_schedule_of_tftrainer(tmp_path):
    trainer = make_trainer(tmp_path, poly_power=2.0, learning_rate=0.01)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.01 * (1 - step / 8) ** 2 for step in range(8)])
    with pytest.raises((ValueError, TypeError), match="poly_power"):
        arguments(tmp_path, poly_power="2")
    with pytest.raises(ValueError, match=r"poly_power=2\.0.*'cosine'"):
        arguments(tmp_path, poly_power=2.0, lr_scheduler_type="cosine")


DATA = [
    ([], ValueError, ["train_dataset is empty"]),
    ([1, 2], TypeError, ["train_dataset: A sample is a int"]),
    ([(np.ones(4), "a word")], TypeError, ["numpy.str_"]),
    ([{"x": np.ones(4)}], ValueError, ["No column 'labels' or 'label'", "label_names"]),
    (iter(points()), TypeError, ["consumed only once"]),
]


@pytest.mark.parametrize(
    ("data", "kind", "words"), DATA, ids=["empty", "no pairs", "text", "no labels", "iterator"]
)
def test_data_of_the_wrong_kind_is_refused(tmp_path, data, kind, words):
    refused(kind, *words, folder=tmp_path, train_dataset=data)


def test_training_without_data_is_refused(tmp_path):
    refused(ValueError, "pass train_dataset", folder=tmp_path, train_dataset=None, train=True)
    refused(ValueError, "no length.*max_steps", folder=tmp_path, train_dataset=Iterable())
    with pytest.raises(ValueError, match="pass eval_dataset"):
        make_trainer(tmp_path, eval_dataset=None).evaluate()


class Iterable:
    """Neither a sequence nor a `tf.data.Dataset`."""

    def __iter__(self):
        return iter(points(9))


def test_models_that_cannot_be_trained_are_refused(tmp_path):
    refused(
        TypeError,
        "WithCall, not a keras.Model: the ordinary Trainer",
        folder=tmp_path,
        model=WithCall(),
    )
    refused(
        TypeError,
        "must be a Keras model, but is Linear",
        folder=tmp_path,
        model=torch.nn.Linear(4, 3),
    )
    refused(
        NotImplementedError,
        "xla=True is not supported: the model computes in torch.*Remove it",
        folder=tmp_path,
        xla=True,
    )
    model = network()
    model.loss = None
    refused(ValueError, r"has no loss.*compile\(loss", folder=tmp_path, model=model, train=True)
    model.loss = ["mse", "mse"]
    refused(
        NotImplementedError, "several losses.*run_model", folder=tmp_path, model=model, train=True
    )
    nothing = keras.Sequential([keras.layers.Activation("relu")])
    nothing.compile(loss="mse")
    refused(RuntimeError, "does not require grad", folder=tmp_path, model=nothing, train=True)
    with pytest.raises(
        ValueError, match=r"has no weights yet, and no data to build it from\. Call it once"
    ):
        make_trainer(tmp_path, model=Subclassed(), train_dataset=None).prediction_loop(
            [], 0, 0, "Evaluation"
        )
    with pytest.raises(
        TypeError, match="args must be TFTrainingArguments, but is TrainingArguments"
    ):
        TFTrainer(model, TrainingArguments(str(tmp_path)))


class WithCall(torch.nn.Linear):
    """As some modules of torch have it."""

    def __init__(self):
        super().__init__(4, 3)

    call = torch.nn.Linear.forward


def test_keras_optimizer_objects_are_refused(tmp_path):
    """It is torch's that steps; one of Keras would never step, without any error."""
    optimizers = (keras.optimizers.Adam(), None)
    refused(
        TypeError,
        r"optimizers\[0\] must be a torch\.optim\.Optimizer",
        folder=tmp_path,
        optimizers=optimizers,
    )


def test_fp16_and_gradients_of_ones_own_do_not_go_together(tmp_path):
    class Own(TFTrainer):
        def training_step(self, *args):
            return super().training_step(*args)

    with pytest.raises(
        NotImplementedError,
        match=r"fp16=True is not supported with an override of training_step.*Set bf16=True",
    ):
        make_trainer(tmp_path, cls=Own, fp16=True).train()
    make_trainer(tmp_path, cls=Own, bf16=True, max_steps=1).train()


PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, *others):
        if name == "tensorflow":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import lightrainer

class Model:
    trainable_variables = []
    def call(self, x): pass

args = lightrainer.TFTrainingArguments(sys.argv[1], report_to="none")
assert "keras" not in sys.modules and "tensorflow" not in sys.modules and "torch" not in sys.modules
try:
    lightrainer.TFTrainer(Model(), args, [([1.0], 1)])
except ImportError as error:
    assert "lightrainer[tf]" in str(error), error
else:
    raise AssertionError
assert "keras" not in sys.modules and "tensorflow" not in sys.modules
"""


def test_keras_is_not_imported_unasked_and_missing_tensorflow_gives_advice(
    tmp_path,
):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_keras_on_another_library_than_torch_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    refused(ValueError, "computes in 'jax'", "KERAS_BACKEND=torch", folder=tmp_path)
