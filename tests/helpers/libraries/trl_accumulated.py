"""Accumulation with TRL: losses that count tokens (SFT), that do not (DPO), and that are scaled
already (GRPO).
"""

import os
import sys

from trl import GRPOConfig, GRPOTrainer

from helpers.libraries import trl_online, trl_preferences, trl_sft
from helpers.libraries.tiny_models import train_and_resume


def main(folder: str) -> None:
    twice = {"gradient_accumulation_steps": 2}
    train_and_resume(lambda to: trl_sft.make(to, **twice), os.path.join(folder, "sft"))
    train_and_resume(
        lambda to: trl_preferences.dpo(to, folder, **twice), os.path.join(folder, "dpo")
    )
    grpo = os.path.join(folder, "grpo")
    train_and_resume(lambda to: trl_online.make(GRPOTrainer, GRPOConfig, to, **twice), grpo)


if __name__ == "__main__":
    main(sys.argv[1])
