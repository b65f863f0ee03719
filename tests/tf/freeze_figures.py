"""Write figures.json: what the TFTrainer of transformers 4 makes of each scenario.
`make tf-figures` runs this.

It needs a separate environment (transformers 4.30.2, tensorflow-cpu 2.15.1, Python 3.9 to 3.11):
nothing newer has that TFTrainer. The order of the samples is TensorFlow's, so it is saved too, for
use without TensorFlow.
"""

import itertools
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", WANDB_DISABLED="true", COMET_MODE="DISABLED")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from transformers import TFTrainer

from helpers.keras.legacy_scenarios import SCENARIOS
from helpers.keras.legacy_script import arguments, dataset, figures

OUTPUT = Path(__file__).with_name("figures.json")


def order(scenario, steps):
    """The samples of each step."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = TFTrainer(None, arguments(scenario, folder), dataset(scenario, "train"))
        batches = trainer.get_train_tfdataset()
        per_epoch = -(-trainer.num_train_examples // trainer.total_train_batch_size)
        epochs = (itertools.islice(batches, per_epoch) for _ in itertools.count())
        steps_of_all = itertools.islice(itertools.chain.from_iterable(epochs), steps)
        return [features["index"].numpy().tolist() for features, _ in steps_of_all]


def frozen(scenario):
    """The figures of a scenario, in as few digits as give the same float32."""
    with tempfile.TemporaryDirectory() as folder:
        values = figures(scenario, folder)
    return {**shortened(values), "order": order(scenario, values["global_step"])}


def shortened(found):
    if isinstance(found, dict):
        return {name: shortened(value) for name, value in found.items()}
    if isinstance(found, list):
        return [shortened(value) for value in found]
    return float(str(np.float32(found))) if isinstance(found, float) else found


def main():
    packages = ("transformers", "tensorflow-cpu", "keras", "numpy")
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    tf.config.threading.set_intra_op_parallelism_threads(1)
    scenarios = {name: frozen(name) for name in SCENARIOS}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(values)}" for name, values in scenarios.items()
    )
    OUTPUT.write_text(f'{{"versions": {json.dumps(versions)},\n"scenarios": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
