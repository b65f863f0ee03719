"""A Lightning callback that is there to hear of optimizer steps."""

from lightning.pytorch import Callback


class Listening(Callback):
    def __init__(self):
        self.heard = 0

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.heard += 1
