"""Trains and evaluates in one of two processes; writes what it found into the folder."""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

from helpers.keras.tiny_keras import losses, make_trainer, network, points, weights

folder = Path(sys.argv[1])
model, held_out = network(), points(7, seed=2)
sizes = {
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "gradient_accumulation_steps": 2,
}
made = make_trainer(
    folder / "together", model=model, train_dataset=points(36), eval_dataset=held_out, **sizes
)
made.train()
assert made.args.train_batch_size == 4
assert made.args.strategy.num_replicas_in_sync == made.args.n_replicas == 2
found = {
    "weights": [one.tolist() for one in weights(model)],
    "losses": losses(made),
    "eval_loss": made.evaluate()["eval_loss"],
    "predictions": made.predict(held_out).predictions.tolist(),
}
(folder / f"rank{made.args.process_index}.json").write_text(json.dumps(found))
