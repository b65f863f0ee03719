"""Write event_sequences.txt: what transformers 5.3.0 does in each situation of
`helpers/parity/event_sequences.py`.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import transformers

from helpers.parity.event_sequences import SITUATIONS, sequence

FROZEN = Path(__file__).with_name("event_sequences.txt")


def main():
    """Write the file of what the reference does."""
    text = [
        (
            "# event, step, epoch, the model's mode (t train, e eval, m mixed), flags before and "
            "after (T stop,"
        ),
        (
            "# E epoch stop, S save, V evaluate, L log), which of model, optimizer, lr_scheduler, "
            "train and eval"
        ),
        (
            "# dataloader are given, entries of the history, logs or metrics; for calls of `log` "
            "only step and mode"
        ),
    ]
    for name, situation in SITUATIONS.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
            text += ["", f"== {name}", *sequence(transformers, situation, folder)]
    FROZEN.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
