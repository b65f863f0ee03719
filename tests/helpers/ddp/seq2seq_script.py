"""An encoder-decoder that is trained and then generates, for `torchrun`: the library is its
argument.

    torchrun --nproc_per_node=2 seq2seq_script.py LIBRARY SCENARIO OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/SCENARIO-rank<rank>.json`.
"""

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from helpers.processes.rank_training import QUIET, leave_group, weighing

VOCABULARY = 23
SHARDED = {
    scenario: {
        "fsdp": "full_shard",
        "fsdp_config": {"version": version, "transformer_layer_cls_to_wrap": ["T5Block"]},
    }
    for scenario, version in (("seq2seq_fsdp1", 1), ("seq2seq_fsdp2", 2))
}
SAMPLES = 13  # on two ranks in batches of 2: the last round lacks 3


def model() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(7)
    sizes = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "initializer_factor": 3.0,
    }
    tokens = {
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens, tie_word_embeddings=False))


def pairs(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        lengths = torch.randint(3, 8, (2,), generator=generator)
        source, target = (
            torch.randint(3, VOCABULARY, (int(n),), generator=generator) for n in lengths
        )
        samples.append({"input_ids": source, "labels": target})
    return samples


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
    labels = pad_sequence(
        [sample["labels"] for sample in samples], batch_first=True, padding_value=-100
    )
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main(library: str, scenario: str, folder: Path) -> None:
    warnings.filterwarnings("ignore")
    api = importlib.import_module(library)
    options = {
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 2,
        "max_steps": 2,
        "learning_rate": 1e-2,
    }
    options |= {"save_strategy": "no", "ddp_timeout": 60, "predict_with_generate": True, **QUIET}
    options |= SHARDED.get(scenario, {})
    arguments = api.Seq2SeqTrainingArguments(str(folder / scenario), **options)
    settings = {
        "model": model(),
        "args": arguments,
        "data_collator": collate,
        "train_dataset": pairs(12, 1),
    }
    settings |= {"eval_dataset": pairs(SAMPLES, 11)}
    settings |= {"compute_metrics": lambda prediction: {"samples": len(prediction.predictions)}}
    trainer_class = (
        weighing(api.Seq2SeqTrainer) if library == "transformers" else api.Seq2SeqTrainer
    )
    trainer = trainer_class(**settings)
    if library == "transformers":
        trainer.model_accepts_loss_kwargs = False  # T5 accepts them, and returns a mean
    trainer.train()
    # Longer than the 20 tokens that batches are padded to: each rank stops where its own sequences
    # end.
    metrics = trainer.evaluate(max_new_tokens=26)
    prediction = trainer.predict(trainer.eval_dataset, max_new_tokens=26)
    several = trainer.predict(
        trainer.eval_dataset, max_new_tokens=4, num_beams=2, num_return_sequences=2
    )
    rank = int(os.environ["RANK"])
    record = {
        "metrics": {name: metrics[name] for name in ("eval_loss", "eval_samples")},
        "predictions": prediction.predictions.tolist(),
        "labels": prediction.label_ids.tolist(),
        "several": several.predictions.tolist(),
        "several_labels": several.label_ids.tolist(),
    }
    # The wrapper of FSDP1 does not gather the weights for a call from outside.
    if scenario != "seq2seq_fsdp1":
        record["alone"] = alone(trainer.model)
    (folder / f"{scenario}-rank{rank}.json").write_text(json.dumps(record))
    del trainer
    leave_group(library)


def alone(trained: Any) -> list[list[int]]:
    """What the trained model generates for one sample after the other, without any Trainer."""
    trained.eval()
    rows = []
    for sample in pairs(SAMPLES, 11):
        batch = collate([sample])
        tokens = trained.generate(
            batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=26
        )
        rows.append(tokens[0].tolist())
    return rows


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
