"""A plain Lightning training on two processes with a bridge; each writes down what it has heard."""

import json
import sys
from pathlib import Path

import torch

from helpers.callbacks.bridged_trainings import At, Automatic, Recorder, loader, make_trainer
from lightrainer import LightningBridge, PrinterCallback


class Noting(Automatic):
    """Keeps the loss of this process."""

    def __init__(self):
        super().__init__()
        self.own = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.own.append(loss.item())
        return loss


def main(folder):
    torch.set_num_threads(1)
    recorder, module = Recorder(), Noting()

    def stop(args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == 4:
            control.should_training_stop = True

    def save(args, state, control, **kwargs):
        control.should_save = state.global_step == 2

    bridge = LightningBridge(
        recorder,
        PrinterCallback(),
        At("on_evaluate", stop),
        At("on_step_end", save),
        output_dir=folder,
    )
    options = {"devices": 2, "strategy": "ddp", "max_epochs": 4, "val_check_interval": 2}
    trainer = make_trainer(bridge, **options)
    trainer.fit(module, loader(32, shuffle=False), loader(8, seed=2))
    heard = {
        "lines": recorder.lines,
        "losses": [entry["loss"] for entry in bridge.state.log_history if "loss" in entry],
        "own_losses": module.own,
        "zero": bridge.state.is_world_process_zero,
        "steps": trainer.global_step,
        "evaluations": recorder.names().count("on_evaluate"),
    }
    Path(folder, f"rank{trainer.global_rank}.json").write_text(json.dumps(heard))


if __name__ == "__main__":
    main(sys.argv[1])
