"""Keras computes in torch, unless KERAS_BACKEND says otherwise (`make test-tf`): known before it
is imported.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
