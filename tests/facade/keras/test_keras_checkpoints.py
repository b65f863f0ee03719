"""Checkpoints of Keras models: resumed trainings equal uninterrupted ones, bit for bit, and nothing
starts from scratch.

Keras computes in torch here, and in TensorFlow with `make test-tf`.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers import HELPERS

keras = pytest.importorskip("keras", reason="keras is not installed")

from safetensors.numpy import load_file

from helpers.keras.tiny_keras import (
    ASIDE,
    eventful,
    furthest,
    in_torch_only,
    losses,
    make_trainer,
    network,
    resumable,
    weights,
)
from helpers.processes.starting import finished_ranks
from lightrainer import EarlyStoppingCallback
from lightrainer.lightning_modules.keras.wrapping import wrap_keras_model


def test_resumed_equals_uninterrupted_in_the_same_process_and_in_a_new_one(tmp_path):
    """In the middle of the second epoch; in one process later models have other names than
    earlier ones.
    """
    whole = eventful()
    trainer = resumable(tmp_path / "whole", whole)
    trainer.train()
    assert trainer.global_step == 12
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "again" / "checkpoint-6")
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "new" / "checkpoint-6")
    other = eventful(seed=8)  # whose weights are not those of the checkpoint
    again = resumable(tmp_path / "again", other)
    again.train()  # by itself from the newest checkpoint, as the original
    assert again.state.log_history[: len(trainer.state.log_history) // 2] != []
    assert losses(again) == losses(trainer)
    assert furthest(weights(other), weights(whole)) == 0
    script = HELPERS / "keras" / "keras_resume_script.py"
    finished_ranks(
        script, str(tmp_path / "new"), log=tmp_path / "log", seconds=240, processes=0, **ASIDE
    )
    result = json.loads((tmp_path / "new" / "found.json").read_text())
    assert result["losses"] == losses(trainer)
    assert (
        furthest([np.array(weight, "float32") for weight in result["weights"]], weights(whole)) == 0
    )
    fresh = eventful()
    resumable(tmp_path / "again", fresh).train(resume_from_checkpoint=False)
    assert furthest(weights(fresh), weights(whole)) == 0, "False starts from scratch"


def test_keras_checkpoint_of_another_model_is_refused(tmp_path):
    """It would leave weights unchanged; with only a warning, the training would start from
    scratch unnoticed.
    """
    make_trainer(tmp_path, save_strategy="epoch", num_train_epochs=1).train()
    deeper = network(keras.layers.Dense(5))
    before = weights(deeper)
    with pytest.raises(
        ValueError, match=r"checkpoint-4 .*sequential/dense_2/kernel, sequential/dense_2/bias"
    ):
        make_trainer(tmp_path, model=deeper).train()
    assert furthest(weights(deeper), before) == 0


def test_keras_best_model_is_loaded_and_early_stopping_stops(tmp_path):
    model = network()
    options = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "learning_rate": 0.5,
    }
    stopping = EarlyStoppingCallback(early_stopping_patience=1)
    trainer = make_trainer(
        tmp_path, model=model, num_train_epochs=20, callbacks=[stopping], **options
    )
    trainer.train()
    assert trainer.global_step < 80
    best = trainer.state.best_model_checkpoint
    saved = wrap_keras_model(other := network(seed=9), lambda *_: None)
    assert furthest(weights(other), weights(model)) > 0
    for name, value in load_file(Path(best) / "model.safetensors").items():
        saved.state_dict()[name].copy_(saved.state_dict()[name].new_tensor(value))
    saved.write_variables()
    assert furthest(weights(other), weights(model)) == 0
    assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric


@in_torch_only
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_in_float32_weights(tmp_path, precision):
    """Of torch for models made elsewhere; of Keras for those made in the scope, and not beyond
    it.
    """
    plain, mixed = network(), network()
    make_trainer(tmp_path, model=plain).train()
    trainer = make_trainer(tmp_path, model=mixed, **{precision: True})
    trainer.train()
    assert 0 < furthest(weights(plain), weights(mixed)) < 0.02
    assert {weight.dtype for weight in weights(mixed)} == {np.dtype("float32")}
    with trainer.args.strategy.scope():
        inside = network()
    assert inside.layers[0].compute_dtype == {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert network().layers[0].compute_dtype == "float32"
    make_trainer(tmp_path, model=inside, **{precision: True}).train()
    assert furthest(weights(plain), weights(inside)) < 0.02
