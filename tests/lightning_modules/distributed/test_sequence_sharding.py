"""Models and batches for sharded sequences: checks, and preparation of batches."""

import types

import pytest
import torch
import transformers
from torch import nn

from lightrainer.lightning_modules.distributed.sequence_sharding import (
    model_problems,
    prepare_inputs,
    split_names,
)

ROWS = torch.arange(1, 15).view(2, 7)


def batch(**changes):
    return {"input_ids": ROWS, "labels": ROWS, **changes}


def test_labels_are_shifted_before_the_split_and_positions_numbered():
    """Rows are filled up to 4 parts on the right, with no target."""
    ready = prepare_inputs(batch(), size=2)
    assert ready["shift_labels"].tolist() == [
        [2, 3, 4, 5, 6, 7, -100, -100],
        [9, 10, 11, 12, 13, 14, -100, -100],
    ]
    assert ready["labels"][:, -1].tolist() == [-100, -100]
    assert ready["input_ids"].tolist()[0] == [1, 2, 3, 4, 5, 6, 7, 0]
    assert ready["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 0]] * 2


def test_sequence_sharding_does_not_pad_what_fits():
    inputs = batch(input_ids=ROWS[:, :4], labels=ROWS[:, :4])
    ready = prepare_inputs(inputs, size=2)
    assert [ready[name].shape for name in split_names(ready)] == [(2, 4)] * 4
    for name in split_names(ready):
        ready[name].resize_(2, 2)
    assert inputs["input_ids"].tolist() == ROWS[:, :4].tolist()
    assert list(inputs) == ["input_ids", "labels"]


def test_sequence_sharding_splits_only_positions():
    embeddings, weights = torch.ones(2, 7, 3), torch.ones(2, 5)
    inputs = {
        "inputs_embeds": embeddings,
        "labels": ROWS,
        "weights": weights,
        "kinds": ROWS > 3,
        "use_cache": False,
    }
    ready = prepare_inputs(inputs, size=4)
    assert sorted(split_names(ready)) == [
        "inputs_embeds",
        "kinds",
        "labels",
        "position_ids",
        "shift_labels",
    ]
    assert ready["inputs_embeds"].shape == (2, 8, 3)
    assert ready["kinds"].dtype == torch.bool
    assert ready["weights"] is weights


def test_labels_that_are_shifted_already_stay_so():
    assert prepare_inputs(batch(shift_labels=ROWS + 1), size=2)["shift_labels"][0, :7].tolist() == [
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]


def test_padding_on_the_right_is_seen_by_no_token_and_left_out():
    mask = torch.tensor([[1] * 7, [1, 1, 1, 0, 0, 0, 0]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 1, 1, 1, 1]])
    labels = ROWS.where(mask.bool(), -100)
    inputs = batch(labels=labels, attention_mask=mask, position_ids=positions)
    assert "attention_mask" not in prepare_inputs(inputs, size=2)
    assert (
        prepare_inputs(inputs, size=2, full_mask=True)["attention_mask"].tolist() == [[1] * 8] * 2
    )


LEFT = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
REFUSED = [
    ({"input_ids": None}, "the batch needs input_ids"),
    ({"labels": None}, "the batch needs labels or shift_labels"),
    ({"labels": torch.ones(2)}, "labels of shape (2,)"),
    ({"attention_mask": LEFT}, "attention_mask masks positions before others"),
    ({"attention_mask": torch.ones(2, 1, 7, 7)}, "attention_mask of shape (2, 1, 7, 7)"),
    ({"attention_mask": LEFT.flip(1)}, "labels must be -100"),
    (
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])},
        "position_ids restart or skip numbers",
    ),
    ({"position_ids": torch.arange(7)}, "position_ids of shape (7,)"),
]


@pytest.mark.parametrize(
    ("changes", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED]
)
def test_sequences_that_cannot_be_split_are_refused_with_the_reason(changes, message):
    with pytest.raises(
        ValueError, match="parallelism_config: cp_size or sp_size above 1 splits sequences"
    ) as error:
        prepare_inputs(batch(**changes), size=2)
    assert message in str(error.value)


class Model(nn.Module):
    def __init__(self, **config):
        super().__init__()
        self.config = types.SimpleNamespace(**config)

    def forward(self, input_ids, position_ids=None, labels=None, shift_labels=None):
        return input_ids


class WithoutPositions(nn.Module):
    def forward(self, input_ids, labels=None, **kwargs):
        return input_ids


FAULTS = [
    (Model(_attn_implementation="eager"), "Load it with attn_implementation='sdpa'"),
    (Model(is_encoder_decoder=True), "Model has an encoder"),
    (
        Model(layer_types=["full_attention", "linear_attention"]),
        "layers with linear_attention, but only full",
    ),
    (Model(sliding_window=8), "layers with sliding_window=8"),
    (
        WithoutPositions(),
        "WithoutPositions.forward has no parameter 'position_ids', the position",
    ),
    (
        WithoutPositions(),
        "WithoutPositions.forward has no parameter 'shift_labels', the label",
    ),
]


@pytest.mark.parametrize(("model", "message"), FAULTS, ids=[message[:40] for _, message in FAULTS])
def test_models_that_would_take_a_part_for_the_whole_are_refused(model, message):
    assert message in "; ".join(model_problems(model))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Llama", {}, ""),
        ("Qwen3", {}, ""),
        ("Olmo2", {}, ""),
        ("Llama", {"attn_implementation": "eager"}, "attn_implementation='eager'"),
        ("Mistral", {"sliding_window": 4}, "sliding_window=4"),
        ("Gemma3", {"head_dim": 8}, "sliding_attention"),
    ],
)
def test_models_of_transformers(name, changes, message):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 31}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 0,
    }
    kind = f"{name}Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **heads, **changes})
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    problems = "; ".join(model_problems(model))
    assert (problems == "") is (message == "")
    assert message in problems
