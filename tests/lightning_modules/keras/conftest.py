"""Keras computes in torch here; it has to know before it is imported."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
