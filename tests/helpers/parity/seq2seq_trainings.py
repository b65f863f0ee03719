"""Encoder-decoder models, their data, and a Seq2SeqTrainer of either library for them."""

import numpy as np
import torch

from helpers.parity.harness import DEFAULTS
from helpers.parity.parity_models import VOCABULARY


def t5():
    """Large first weights, so that what is generated differs from sample to sample and ends
    early now and then.
    """
    from transformers import T5Config, T5ForConditionalGeneration

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


def bart():
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    }
    heads = {
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_position_embeddings": 64,
        "init_std": 1.5,
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2}
    return BartForConditionalGeneration(
        BartConfig(vocab_size=VOCABULARY, forced_eos_token_id=None, **tokens, **sizes, **heads)
    )


class Words:
    """The least of a tokenizer: what a collator and a Seq2SeqTrainer ask for."""

    pad_token_id = 0
    eos_token_id = 1
    padding_side = "right"
    model_input_names = ["input_ids", "attention_mask"]

    def pad(
        self, features, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors="pt"
    ):
        longest = max(len(feature["input_ids"]) for feature in features)
        rows = [list(map(int, feature["input_ids"])) for feature in features]
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def pairs(count, seed=5, labelled=True):
    """Sources of 3 to 9 tokens and targets of 2 to 6, which end with token 1."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        lengths = torch.randint(0, 5, (2,), generator=generator) + torch.tensor([3, 1])
        source, target = (
            torch.randint(3, VOCABULARY, (int(n),), generator=generator).tolist() for n in lengths
        )
        samples.append(
            {"input_ids": [*source, 1], **({"labels": [*target, 1]} if labelled else {})}
        )
    return samples


def token_metrics(prediction):
    """Numbers that every generated token and every label counts in."""
    tokens, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    weights = np.arange(1, tokens.size + 1).reshape(tokens.shape)
    return {
        "tokens": float((tokens * weights).sum()),
        "labels": float(labels.sum()),
        "width": tokens.shape[1],
    }


def build(
    api, model, folder, collator_model=True, subclass=lambda base: base, trainer=None, **arguments
):
    """A Seq2SeqTrainer of the library with the collator of the library."""
    torch.manual_seed(7)
    network = model()
    settings = {**DEFAULTS, "predict_with_generate": True, **arguments}
    words = Words()
    keywords = {
        "train_dataset": pairs(18),
        "eval_dataset": pairs(9, seed=6),
        "compute_metrics": token_metrics,
    }
    keywords |= {"processing_class": words}
    keywords |= {
        "data_collator": api.DataCollatorForSeq2Seq(
            words, model=network if collator_model else None
        )
    }
    keywords |= {**(trainer or {})}
    args = api.Seq2SeqTrainingArguments(output_dir=str(folder), **settings)
    return subclass(api.Seq2SeqTrainer)(model=network, args=args, **keywords)
