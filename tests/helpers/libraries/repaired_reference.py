"""Runs a script on the reference, without its one defect under accumulation:
`repaired_reference.py SCRIPT ARGUMENTS`.

transformers 5.3.0 divides the loss by the number of micro-batches, and lets accelerate divide it
once more; later versions do not, and neither do we.
"""

import functools
import runpy
import sys

import transformers

CALLS_BACKWARD_ITSELF = "NashMDTrainer"
"""Its own training step divides by nothing, so that accelerate divides once, as is right."""

made = transformers.Trainer.__init__


@functools.wraps(made)
def make(self, *positional, **keywords):
    """As the reference's, but accelerate is told of no accumulation."""
    made(self, *positional, **keywords)
    if type(self).__name__ == CALLS_BACKWARD_ITSELF:
        return
    self.accelerator.gradient_accumulation_steps = 1


transformers.Trainer.__init__ = make
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
