"""Generation in two processes: sequences of different lengths, every sample once and in order."""

import pytest

OURS, REFERENCE = "lightrainer", "transformers"
SAMPLES = 13


@pytest.fixture(scope="module", autouse=True)
def _reference_is_there():
    pytest.importorskip("transformers")


def without_padding(row: list[int]) -> list[int]:
    tokens = [token for token in row if token != -100]
    while tokens and tokens[-1] == 0:
        tokens.pop()
    return tokens


def test_seq2seq_generates_for_every_sample_once_in_order(two_ranks):
    """Compared with what the same model generates for one sample after the other."""
    first, second = two_ranks(OURS, "seq2seq").ranks
    assert first == second
    assert (
        len(first["predictions"])
        == len(first["labels"])
        == first["metrics"]["eval_samples"]
        == SAMPLES
    )
    alone = [without_padding(row) for row in first["alone"]]
    assert [without_padding(row) for row in first["predictions"]] == alone
    assert len({tuple(row) for row in alone}) > 2
    widths = [sum(token != -100 for token in row) for row in first["predictions"]]
    assert any(widths[start] != widths[start + 2] for start in range(0, 12, 4)), (
        "ranks end at different lengths"
    )


def test_seq2seq_keeps_all_sequences_of_a_sample(two_ranks):
    """And of the samples that only fill up the last round none; 5.3.0 has the same in front."""
    expected, actual = (
        two_ranks(REFERENCE, "seq2seq").ranks[0],
        two_ranks(OURS, "seq2seq").ranks[0],
    )
    assert len(actual["several"]) == 2 * len(actual["several_labels"]) == 2 * SAMPLES
    assert actual["several_labels"] == actual["labels"]
    expected_rows = [without_padding(row) for row in expected["several"]]
    assert [without_padding(row) for row in actual["several"]] == expected_rows[: 2 * SAMPLES]


def test_seq2seq_reference_generates_some_samples_twice(two_ranks):
    """5.3.0 leaves in the predictions what only fills up the last round; without that they are
    ours.
    """
    expected, actual = (
        two_ranks(REFERENCE, "seq2seq").ranks[0],
        two_ranks(OURS, "seq2seq").ranks[0],
    )
    assert len(expected["predictions"]) == 16
    for name in ("predictions", "labels"):
        assert [without_padding(row) for row in actual[name]] == [
            without_padding(row) for row in expected[name][:13]
        ]
    assert actual["metrics"]["eval_loss"] == pytest.approx(
        expected["metrics"]["eval_loss"], rel=1e-5
    )


@pytest.mark.parametrize("scenario", ["seq2seq_fsdp1", "seq2seq_fsdp2"])
def test_seq2seq_ranks_that_share_weights_generate_the_same(two_ranks, scenario):
    """No rank has the embeddings for itself, and all have to generate as long as the longest
    one.
    """
    whole, sharded = two_ranks(OURS, "seq2seq").ranks[0], two_ranks(OURS, scenario).ranks
    assert sharded[0] == sharded[1]
    for name in ("predictions", "labels"):
        assert list(map(without_padding, sharded[0][name])) == list(
            map(without_padding, whole[name])
        )
    assert sharded[0]["metrics"]["eval_loss"] == pytest.approx(
        whole["metrics"]["eval_loss"], rel=1e-3
    )
