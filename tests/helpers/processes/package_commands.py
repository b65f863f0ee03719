"""Commands of the package on a script, each in a process that is forked from one with the
libraries.
"""

import os
import subprocess

from helpers.processes.starting import forked_python

NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x, labels):
        scores = self.layer(x)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

"""
"""Model of the scripts, after `from torch import nn`."""


def command(*words, cwd, **settings):
    """Run `lightrainer` with these words in a folder."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("LIGHTRAINER")
    }
    words = [forked_python(), "-m", "lightrainer", *map(str, words)]
    environment = {**inherited, "OMP_NUM_THREADS": "1", **settings}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=600, cwd=cwd, env=environment
    )
