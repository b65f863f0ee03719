"""Settings that are refused: `refused_settings.py CASE FOLDER` has to fail, and to say what it is that fails."""

import sys

import trl_online
import trl_preferences
import trl_sft
from trl import GRPOConfig, GRPOTrainer

ZERO = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}
CASES = {
    "deepspeed": lambda folder: trl_sft.make(folder, deepspeed=ZERO),
    "fsdp": lambda folder: trl_preferences.dpo(folder, folder, fsdp="full_shard"),
    "vllm": lambda folder: trl_online.make(GRPOTrainer, GRPOConfig, folder, use_vllm=True),
}


if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2]).train()
