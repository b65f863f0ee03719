"""Keras computes in torch here; it has to know before it is imported."""

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
sys.path.insert(0, str(Path(__file__).parent))
