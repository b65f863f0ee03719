"""Accumulation with TRL: losses that count tokens (SFT), that do not (DPO), and that are scaled
already (GRPO).
"""

import os
import sys

import trl_online
import trl_preferences
import trl_sft
from tiny_models import train_and_resume
from trl import GRPOConfig, GRPOTrainer


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
