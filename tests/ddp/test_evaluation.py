"""Every sample is evaluated once and in order, for data of any length and two or three
processes.
"""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from torchmetrics.classification import MulticlassAUROC

from helpers.ddp.evaluation_script import CLASSES, Normalized, Tokens, lengths, samples
from helpers.processes.rank_training import points
from lightrainer import default_data_collator

OURS, REFERENCE = "lightrainer", "transformers"
KINDS = ["list", "stream", "stream by a worker"]


def expected(count):
    """The logits and labels of all tokens, sample by sample."""
    model = Tokens()
    with torch.no_grad():
        return [(model.table(item["input_ids"]), item["labels"]) for item in samples(count)]


def padded(rows, filler):
    """Rows of different lengths, filled up to the longest."""
    longest = max(len(row) for row in rows)
    return [[*row, *[filler] * (longest - len(row))] for row in rows]


def counted_tokens(count):
    logits, labels = (torch.cat(parts) for parts in zip(*expected(count), strict=True))
    return logits[labels != -100], labels[labels != -100]


@pytest.fixture(params=[2, 3], ids=lambda number: f"{number} ranks")
def ranks(request, two_ranks):
    return two_ranks(OURS, f"evaluation{request.param}").ranks


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_all_there_once_and_in_order(ranks, kind):
    """Of each sample its number, labels and logits, filled up with -100 where others are longer."""
    for count in lengths(len(ranks), kind):
        truth = expected(count)
        labels = padded([row.tolist() for _, row in truth], -100)
        for rank in ranks:
            predictions = rank[f"{kind} of {count}"]
            assert predictions["index"] == list(range(count))
            assert predictions["labels"] == labels
            assert predictions["seen"] == [[predictions["index"], labels]], (
                "what a function is given"
            )
            for logits, row in zip(predictions["logits"], truth, strict=True):
                assert logits[: len(row[0])] == row[0].tolist()


def test_predictions_with_rows_of_tokens_are_gathered(ranks):
    """Such as router logits, of which each process has others in number."""
    tokens = torch.cat([logits for logits, _ in expected(17)]).tolist()
    for rank in ranks:
        index, router_logits = rank["routed"]
        assert index == list(range(17))
        for row in tokens[:5]:
            assert row in router_logits


@pytest.mark.filterwarnings("ignore:No (positive|negative) samples")
@pytest.mark.parametrize("kind", KINDS)
def test_torchmetrics_are_exact(ranks, kind):
    """Sums, and lists of all samples, of which some processes have none; the third sample has no
    label at all.

    A plain function is given such lists.
    """
    for count in lengths(len(ranks), kind):
        logits, labels = counted_tokens(count)
        loss = functional.cross_entropy(logits.double(), labels).item()
        accuracy = (logits.argmax(-1) == labels).float().mean().item()
        auroc = MulticlassAUROC(CLASSES)(logits.softmax(-1), labels).item()
        for rank in ranks:
            metrics = rank[f"{kind} of {count}"]["torchmetrics"]
            assert metrics["eval_token_loss"] == pytest.approx(loss, rel=1e-5)
            assert metrics["eval_perplexity"] == pytest.approx(math.exp(loss), abs=1e-5)
            assert metrics["eval_several_MulticlassAccuracy"] == pytest.approx(accuracy)
            assert metrics["eval_plain"] == pytest.approx(accuracy)
            assert metrics["eval_several_MulticlassAUROC"] == pytest.approx(auroc)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_loss_is_equal_on_all_ranks(ranks, kind):
    for count in lengths(len(ranks), kind):
        metric_kinds = ("function", "torchmetrics") if kind == "list" else ("torchmetrics",)
        runs = [rank[f"{kind} of {count}"] for rank in ranks]
        losses = {run["test_loss"] for run in runs} | {
            run[metric_kind]["eval_loss"] for run in runs for metric_kind in metric_kinds
        }
        assert len(losses) == 1


def test_evaluation_in_training_is_of_the_saved_model(two_ranks):
    """With the statistics of rank 0, although each rank has those of its own last batch."""
    run = two_ranks(OURS, "evaluation2")
    trainings = [rank["in training"] for rank in run.ranks]
    for of_rank_0, of_rank_1 in zip(*(each["statistics"] for each in trainings), strict=True):
        assert of_rank_0 != of_rank_1

    losses = trainings[0]["losses"]
    assert len(losses) == 3
    assert trainings[1]["losses"] == losses
    batch = default_data_collator(points(8, seed=2))
    for checkpoint, loss in losses.items():
        model = Normalized().eval()
        file = run.folder / "evaluation2" / "normalized" / checkpoint / "model.safetensors"
        model.load_state_dict(load_file(file))
        assert loss == pytest.approx(model(**batch)["loss"].item(), rel=1e-5)


def test_evaluation_outside_of_a_training_keeps_the_model_of_each_rank(two_ranks):
    """Lightning would copy the model of rank 0 to the others."""
    models = [rank["own model"] for rank in two_ranks(OURS, "evaluation2").ranks]
    assert models[0]["before"] != models[1]["before"]
    mean = sum(rank["alone"] for rank in models) / len(models)
    for rank in models:
        assert rank["after"] == rank["before"]
        assert rank["reported"] == pytest.approx([mean, mean], rel=1e-5)


def test_evaluation_in_training_is_of_one_model_for_all_kinds(two_ranks):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    for rank in two_ranks(OURS, "evaluation2").ranks:
        assert len(rank["kinds in training"]) == 6
        for kind, (logged, alone) in rank["kinds in training"].items():
            assert logged == pytest.approx(alone, rel=1e-5), kind


def test_evaluation_loss_and_arrays_equal_the_reference(two_ranks):
    """Its own two processes, bit for bit."""
    pytest.importorskip("transformers")
    reference, ours = (
        two_ranks(REFERENCE, "evaluation2").ranks,
        two_ranks(OURS, "evaluation2").ranks,
    )
    for count in lengths(2):
        for expected_rank, rank in zip(reference, ours, strict=True):
            left, right = expected_rank[f"list of {count}"], rank[f"list of {count}"]
            assert right["function"]["eval_loss"] == left["function"]["eval_loss"]
            for name in ("logits", "labels", "index", "test_loss", "seen"):
                assert right[name] == left[name]
