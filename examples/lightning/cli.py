"""A training out of a file:
`python examples/lightning/cli.py fit --config examples/lightning/config.yaml`.

Every argument can be given on the command line too:
`--model.optimizer.learning_rate=0.02 --data.batch_size=4`. It needs
`pip install "lightrainer[cli]"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datamodule import Sentences
from lightning.pytorch.cli import LightningCLI

from lightrainer import CausalLMModule


def main(args: Sequence[str] | None = None) -> Any:
    """Do what the arguments say, by default those of the command line."""
    return LightningCLI(
        CausalLMModule, Sentences, args=args, save_config_callback=None, seed_everything_default=42
    )


if __name__ == "__main__":
    main()
