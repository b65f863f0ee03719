"""Packed documents give what each gives alone."""

import numpy as np
import pytest
import torch
import transformers

from lightrainer import DataCollatorWithPacking

LENGTHS = (7, 3, 12, 1, 5, 9, 2)
DOCUMENTS = [
    {"input_ids": [(3 * i + k * k) % 31 + 1 for k in range(n)]} for i, n in enumerate(LENGTHS)
]


def model(name, attention):
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "attn_implementation": attention}
    if name == "gpt2":
        dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=2, n_positions=32, **dropout, **sizes
        )
        return transformers.GPT2LMHeadModel(config).train()
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=24, **heads, **sizes)
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("attention", "dtype"), [("sdpa", "float32"), ("eager", "float32"), ("sdpa", "bool")]
)
def test_logits_loss_and_gradients_are_those_of_the_documents_alone(name, attention, dtype):
    packed, alone = model(name, attention), model(name, attention)
    batch = DataCollatorWithPacking(16, mask_dtype=dtype)(DOCUMENTS)
    packed_output = packed(**batch)
    packed_output.loss.backward()
    starts = (batch["position_ids"] == 0) & (batch["input_ids"] > 0)
    places = {
        batch["input_ids"][row, start].item(): (row, start)
        for row, start in starts.nonzero().tolist()
    }
    total, items = torch.zeros(()), sum(LENGTHS) - len(LENGTHS)
    for length, document in zip(LENGTHS, DOCUMENTS, strict=True):
        ids = torch.tensor([document["input_ids"]])
        output = alone(input_ids=ids, labels=ids if length > 1 else None)
        row, start = places[document["input_ids"][0]]
        torch.testing.assert_close(
            packed_output.logits[row, start : start + length],
            output.logits[0],
            rtol=1e-5,
            atol=1e-5,
        )
        if length > 1:
            total = total + output.loss * (length - 1)
    (total / items).backward()
    torch.testing.assert_close(packed_output.loss, total / items, rtol=1e-5, atol=1e-5)
    for actual, expected in zip(packed.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_packing_rows_hold_documents_with_padding_at_the_end():
    documents = [[1, 2], [], torch.tensor([3, 4, 5]), [8, 8, 8, 8]]
    features = [{"input_ids": ids} for ids in documents]
    features[2]["labels"] = [6, -100, 7]
    batch = DataCollatorWithPacking(6, pad_token_id=9)(features)
    assert batch["input_ids"].tolist() == [[8, 8, 8, 8, 1, 2], [3, 4, 5, 9, 9, 9]]
    assert batch["labels"].tolist() == [
        [-100, 8, 8, 8, -100, 2],
        [-100, -100, 7, -100, -100, -100],
    ]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 0, 0]]
    assert batch["attention_mask"].shape == (2, 1, 6, 6)
    visible = batch["attention_mask"] == 0
    assert visible[0, 0, 5].tolist() == [False] * 4 + [True, True]
    assert visible[0, 0, 1].tolist() == [True, True] + [False] * 4
    assert visible.any(-1).all(), "no row of scores is masked as a whole"
    both = DataCollatorWithPacking(6, causal=False, mask_dtype="bool")([{"input_ids": [1, 2]}])
    assert both["attention_mask"].all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool", None])
def test_masks_are_of_the_dtype_that_is_asked_for(dtype):
    batch = DataCollatorWithPacking(8, mask_dtype=dtype)(DOCUMENTS[:2])
    assert ("attention_mask" in batch) == (dtype is not None)
    if dtype is not None:
        mask = batch["attention_mask"]
        assert mask.dtype == getattr(torch, dtype)
        assert mask.isfinite().all()
        assert mask.amin() < 0 or dtype == "bool"
    if dtype not in (None, "bfloat16"):  # which numpy does not have
        array = DataCollatorWithPacking(8, mask_dtype=dtype, return_tensors="np")(DOCUMENTS[:2])
        assert np.array_equal(array["attention_mask"], batch["attention_mask"].numpy())


def test_packing_uses_as_few_rows_as_first_fit():
    rows = DataCollatorWithPacking(16)(DOCUMENTS)["input_ids"]
    assert rows.shape == (3, 16)
    assert (rows > 0).sum() == sum(LENGTHS)


def test_packing_that_cannot_be_is_refused():
    with pytest.raises(
        ValueError, match="Document 2 of the batch has 12 tokens, more than max_length=11"
    ):
        DataCollatorWithPacking(11)(DOCUMENTS)
    with pytest.raises(ValueError, match="mask_dtype='int8' is not supported"):
        DataCollatorWithPacking(11, mask_dtype="int8")
    with pytest.raises(ValueError, match="whole numbers"):
        DataCollatorWithPacking(11)([{"input_ids": [1, 2], "labels": [1.5, 2]}])
