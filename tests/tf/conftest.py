"""Keras computes in torch, unless KERAS_BACKEND says otherwise (`make test-tf`): known before it is imported."""

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parent))
