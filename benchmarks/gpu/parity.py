"""Stage `parity`: losses and weights after a few steps, against a bare loop and against the
reference.
"""

import functools
from collections.abc import Callable
from importlib.metadata import version

from packaging.version import Version

from .cases import Outcome, Setting
from .models import SMALL, TINY
from .training import PRECISIONS, Trained, Training

TOLERANCES = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}
"""Kernels of a GPU add in an order of their own, and lower precisions round at each operation."""

VARIANTS = {
    "plain": {},
    "accumulation": {"accumulation": 4},
    "clipping": {"clip": 0.1},
    "compile": {"compiled": True},
    "gradient checkpointing": {"checkpointing": True},
}


def cases(setting: Setting) -> dict[str, Callable[[], Outcome]]:
    """Return a case for each precision and variant; a rehearsal has one precision."""
    shape, steps = (TINY, 3) if setting.small else (SMALL, 12)
    precisions = ["bf16"] if setting.small else list(PRECISIONS)
    return {
        f"{precision}, {variant}": functools.partial(
            compare, Training(shape, steps, precision=precision, **options), setting
        )
        for precision in precisions
        for variant, options in VARIANTS.items()
    }


def compare(training: Training, setting: Setting) -> Outcome:
    """Train with all sides; this package may differ from none by more than the tolerance."""
    # A compiled model uses TF32, which rounds as float16 does, where it would use float32.
    is_tf32 = training.compiled and training.precision == "fp32"
    tolerance = TOLERANCES["tf32" if is_tf32 else training.precision]
    with training.trainer("lightrainer", setting) as trainer:
        ours = Trained.by(trainer)
    distances = {"to the bare loop": ours.distance(training.bare(setting))}
    if comparable(training, setting):
        with training.trainer("transformers", setting) as trainer:
            distances["to transformers"] = ours.distance(Trained.by(trainer))
    # A distance that is no number fails, too.
    passed = all(value <= tolerance for value in distances.values())
    return {"passed": passed, "figures": {**distances, "tolerance": tolerance}}


def comparable(training: Training, setting: Setting) -> bool:
    """Return whether the reference is there and means the same; 5.3 makes gradients under
    accumulation too small.
    """
    has_reference = "transformers" in setting.libraries()
    return has_reference and (
        training.accumulation == 1 or Version(version("transformers")) >= Version("5.4")
    )
