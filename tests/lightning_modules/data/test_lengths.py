"""Samples are grouped by length in the reference's order."""

import datasets
import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import LengthGroupedSampler as ReferenceSampler
from transformers.trainer_pt_utils import get_length_grouped_indices as reference_indices

from lightrainer.lightning_modules.data.length_grouping import (
    LengthGroupedSampler,
    get_length_grouped_indices,
)
from lightrainer.lightning_modules.data.lengths import LengthCache, column_lengths, sample_lengths


def generator(seed=7):
    return torch.Generator().manual_seed(seed)


def random_lengths(count, highest=30):
    return torch.randint(1, highest, (count,), generator=generator(1)).tolist()


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000, 3001])
@pytest.mark.parametrize("batch_size", [1, 4, 16])
@pytest.mark.parametrize("multiple", [None, 1, 3])
def test_order_equals_reference(count, batch_size, multiple):
    """Many lengths are equal here, so ties are broken in the same way too."""
    lengths = random_lengths(count)
    expected = reference_indices(lengths, batch_size, multiple, generator())
    assert get_length_grouped_indices(lengths, batch_size, multiple, generator()) == expected
    assert sorted(expected) == list(range(count))


@pytest.mark.parametrize(
    "convert", [torch.tensor, np.array, lambda x: np.array(x, np.uint8), tuple]
)
def test_lengths_of_any_kind(convert):
    lengths = random_lengths(100)
    expected = reference_indices(lengths, 4, generator=generator())
    assert get_length_grouped_indices(convert(lengths), 4, generator=generator()) == expected
    assert (
        list(LengthGroupedSampler(4, lengths=convert(lengths), generator=generator())) == expected
    )


def test_global_generator_is_used_as_in_the_reference():
    """The same draws are taken from it, so that what comes after is the same too."""
    lengths = random_lengths(100)
    torch.manual_seed(3)
    expected = reference_indices(lengths, 4), torch.rand(1)
    torch.manual_seed(3)
    assert (get_length_grouped_indices(lengths, 4), torch.rand(1)) == expected


def test_epochs_of_the_sampler_equal_reference():
    """Two epochs in a row, lengths read from the samples."""
    samples = [{"input_ids": [0] * length} for length in random_lengths(50)]
    ours, reference = (
        cls(4, dataset=samples, generator=generator())
        for cls in (LengthGroupedSampler, ReferenceSampler)
    )
    assert len(ours) == len(reference) == 50
    assert ours.lengths == reference.lengths
    first = list(ours)
    assert first == list(reference)
    assert list(ours) == list(reference) != first


def forms(dataset):
    return {
        "plain": dataset,
        "selected": dataset.select([5, 3, 3, 0]),
        "torch": dataset.with_format("torch"),
        "columns": dataset.with_format("numpy", columns=["input_ids"]),
        "joined": datasets.concatenate_datasets([dataset, dataset.select([1])]),
        "transformed": dataset.with_transform(
            lambda rows: {"input_ids": [row[:1] for row in rows["input_ids"]]}
        ),
        "text": dataset.rename_columns({"input_ids": "x", "text": "input_ids"}),
        "added by a transform": (
            dataset.remove_columns("input_ids").with_transform(
                lambda rows: {"input_ids": [[0] * len(text) for text in rows["text"]]}
            )
        ),
        "fixed": datasets.Dataset.from_dict(
            {"input_ids": [[1, 2], [3, 4]]},
            features=datasets.Features(
                {"input_ids": datasets.Sequence(datasets.Value("int64"), length=2)}
            ),
        ),
        "matrices": datasets.Dataset.from_dict(
            {"input_ids": [[[1, 2]], [[3, 4]]]},
            features=datasets.Features({"input_ids": datasets.Array2D((1, 2), "int64")}),
        ),
    }


BASE = datasets.Dataset.from_dict(
    {
        "input_ids": [[0] * length for length in random_lengths(9)],
        "text": ["b" * length for length in reversed(random_lengths(9))],
    }
)


@pytest.mark.parametrize("dataset", forms(BASE).values(), ids=forms(BASE))
def test_tables_are_measured_as_by_the_reference(dataset):
    """Read by column, or sample by sample where a transform makes the samples."""
    lengths = sample_lengths(dataset, "input_ids")
    assert lengths.tolist() == ReferenceSampler(2, dataset=dataset).lengths


def test_tables_are_not_read_sample_by_sample(monkeypatch):
    """As the reference reads them."""
    table, reads = datasets.Dataset.from_dict({"input_ids": [[0] * 5] * 300}), []
    take = datasets.Dataset._getitem
    monkeypatch.setattr(
        datasets.Dataset, "_getitem", lambda *words, **how: reads.append(1) or take(*words, **how)
    )
    monkeypatch.setattr(
        datasets.Dataset, "__iter__", lambda self: (self[index] for index in range(len(self)))
    )
    assert sample_lengths(table, "input_ids").tolist() == [5] * 300
    assert len(reads) < 10


@pytest.mark.parametrize(
    ("samples", "seen"), [([(1, 2)], "the type tuple"), ([{"ids": [1]}], r"the columns \['ids'\]")]
)
def test_samples_that_cannot_be_measured(samples, seen):
    with pytest.raises(ValueError, match=f"'input_ids'.*length_column_name.*{seen}"):
        LengthGroupedSampler(2, dataset=samples)


def test_lengths_of_a_grown_dataset_are_measured_again():
    cache, data = LengthCache(), [1]
    assert cache.get(data, "a", lambda: "short") == cache.get(data, "a", lambda: "new") == "short"
    data.append(2)
    assert cache.get(data, "a", lambda: "longer") == "longer"


@pytest.mark.parametrize("form", ["plain", "torch", "selected", "transformed"])
def test_lengths_column_is_read_as_a_column(form):
    lengths = random_lengths(50)
    table = datasets.Dataset.from_dict({"input_ids": [[0]] * 50, "n": lengths})
    table = {
        "plain": table,
        "torch": table.with_format("torch", columns=["input_ids"]),
        "selected": datasets.concatenate_datasets([table, table]).select(range(50, 100)),
        "transformed": table.with_transform(lambda rows: pytest.fail("a column needs no sample")),
    }[form]
    column = column_lengths(table, "n")
    assert column.tolist() == lengths
    assert column_lengths(table, "m") is None
    assert column_lengths([{"n": 3}], "n") is None


def test_lengths_column_with_gaps_is_ignored():
    with pytest.raises(ValueError, match=r"column 'n' .* 1 of 3 values"):
        column_lengths(datasets.Dataset.from_dict({"n": [1, None, 3]}), "n")


@pytest.mark.parametrize(("value", "kind"), [([1, 2], "list<.*int64>"), ("a", "string")])
def test_a_column_of_other_values_holds_no_lengths(value, kind):
    table = datasets.Dataset.from_list([{"length": value}] * 3)
    with pytest.raises(ValueError, match=f"length_column_name='length' is a column of {kind}"):
        column_lengths(table, "length")


def test_index_error_in_a_dataset_does_not_end_the_lengths():
    class Rows:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"input_ids": [[1], [1, 2]][index]}

    with pytest.raises(IndexError):
        sample_lengths(Rows(), "input_ids")
