"""Scripts of transformers 4 that train Keras models: their names are served, and Keras knows
what it computes in.
"""

import sys
from importlib.util import find_spec

import pytest

from helpers.processes.plain_pythons import forked, last_json, run

# Not imported here: Keras would look for TensorFlow.
pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")

SCRIPT = """
import json, os, sys
import keras
import numpy as np
from transformers import TFTrainer, TFTrainingArguments
from transformers.trainer_tf import TFTrainer as same
from transformers.training_args_tf import TFTrainingArguments as same_arguments

class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(3)

    def call(self, inputs, labels=None, training=False):
        logits = self.head(inputs["x"])
        if labels is None:
            return (logits,)
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True), logits

x = np.random.RandomState(0).standard_normal((32, 3)).astype("float32")
samples = [({"x": row}, row.argmax()) for row in x]
args = TFTrainingArguments(
    "output", num_train_epochs=5, learning_rate=0.1, evaluation_strategy="epoch", save_steps=0, logging_steps=1,
    report_to="none", disable_tqdm=True, overwrite_output_dir=True,
)
with args.strategy.scope():
    model = Classifier()
trainer = TFTrainer(model=model, args=args, train_dataset=samples, eval_dataset=samples)
before = trainer.evaluate()["eval_loss"]
trainer.train()
print(json.dumps([
    same is TFTrainer and same_arguments is TFTrainingArguments, TFTrainer.__module__, keras.backend.backend(),
    before, trainer.evaluate()["eval_loss"], "tensorflow" in sys.modules,
]))
"""


@pytest.mark.parametrize("library", ["with_library", "without_library"])
def test_keras_script_runs_with_and_without_the_reference(library, request, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    python = request.getfixturevalue(library)
    done = forked(
        python, "script.py", served=True, cwd=tmp_path, environment={"KERAS_BACKEND": "torch"}
    )
    same, module, backend, before, after, tensorflow = last_json(done)
    assert same
    assert (module, backend, tensorflow) == ("lightrainer.facade.keras.trainer", "torch", False)
    assert after < before / 2


WORDS = [
    ([], None, "torch"),
    (["run", "--keras-backend=torch"], "jax", "torch"),
]


@pytest.mark.parametrize(("words", "variable", "backend"), WORDS)
def test_keras_backend_is_set_before_import(words, variable, backend, tmp_path):
    """The option goes before the variable, and that before torch; programs that the script
    starts know it too.
    """
    inner = "import os; print(os.environ['KERAS_BACKEND'])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    variables = {} if variable is None else {"KERAS_BACKEND": variable}
    words = ["-m", "lightrainer", *words, "-c", code]
    done = run(sys.executable, *words, cwd=tmp_path, environment=variables)
    assert (done.returncode, done.stdout.strip()) == (0, backend), done.stderr
