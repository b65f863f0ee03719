"""Logits and labels reach each kind of metric so that it says what it says of the whole data at
once.
"""

import pytest
import torch
import torchmetrics
from torch.nn import functional
from torchmetrics import classification, regression, retrieval, segmentation, text
from torchmetrics.wrappers import ClasswiseWrapper

from lightrainer.lightning_modules.evaluation.metric_inputs import input_family, metric_inputs
from lightrainer.lightning_modules.evaluation.token_metrics import TokenLoss

CLASSES = 4


def tokens(rows=3, length=5):
    """Logits of (rows, length, classes), labels of (rows, length) of which some are -100."""
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, length, CLASSES, generator=generator) * 3
    labels = torch.randint(CLASSES, (rows, length), generator=generator)
    labels[torch.rand(rows, length, generator=generator) < 0.4] = -100
    labels[0, 0] = 1
    return logits, labels


def given(metric, predictions, labels):
    return metric_inputs(input_family(metric), predictions, labels)


def said(metric, predictions, labels):
    metric.update(*given(metric, predictions, labels))
    return metric.compute()


def test_tokens_without_a_label_are_left_out():
    logits, labels = tokens()
    counts = labels != -100
    assert not counts.all()
    expected = (logits.argmax(-1)[counts] == labels[counts]).float().mean()
    metric = classification.MulticlassAccuracy(CLASSES, average="micro")
    assert said(metric, logits, labels).item() == pytest.approx(expected.item())
    predictions, targets = given(metric, logits, labels)
    assert torch.equal(predictions, logits[counts].softmax(-1))
    assert torch.equal(targets, labels[counts])


def test_classes_in_the_second_dimension():
    """As segmentation models have them: mIoU of images."""
    logits = torch.randn(2, CLASSES, 5, 6)
    labels = torch.randint(CLASSES, (2, 5, 6))
    labels[0, :2] = -100
    expected = classification.MulticlassJaccardIndex(CLASSES, ignore_index=-100)(logits, labels)
    assert torch.allclose(
        said(classification.MulticlassJaccardIndex(CLASSES), logits, labels), expected
    )


def test_metric_inputs_last_dimension_holds_the_classes():
    """Both dimensions could be the classes, as in sequences of as many tokens as there are
    classes.
    """
    logits, labels = tokens(2, CLASSES)
    labels[labels == -100] = 0
    metric = classification.MulticlassAccuracy(CLASSES, average="micro")
    assert said(metric, logits, labels) == (logits.argmax(-1) == labels).float().mean()


@pytest.mark.parametrize("scale", [0.1, 3.0], ids=["logits between 0 and 1", "large logits"])
def test_logits_are_never_taken_for_probabilities(scale):
    """torchmetrics does that where all logits of a batch lie between 0 and 1."""
    logits = torch.rand(40, 1) * scale
    labels = torch.randint(2, (40,), generator=torch.Generator().manual_seed(1))
    for predictions in (
        logits,
        logits.squeeze(1),
        torch.cat([torch.zeros_like(logits), logits], dim=1),
    ):
        accuracy = said(classification.BinaryAccuracy(), predictions, labels)
        assert accuracy == labels.float().mean(), "a positive logit is a prediction of 1"


def test_metric_inputs_several_labels_per_sample():
    """Their labels may be floating point numbers, as the loss wants them; the shape stays."""
    logits = torch.tensor([[0.2, -0.2, 3.0], [0.9, 0.1, -3.0]])
    labels = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert said(classification.MultilabelAccuracy(3), logits, labels) == 1
    assert given(classification.MultilabelAccuracy(3), logits, labels)[0].shape == (2, 3)


def test_classification_gets_probabilities_and_other_metrics_logits():
    logits, labels = torch.randn(9, CLASSES), torch.arange(9) % CLASSES
    for metric in (
        classification.MulticlassF1Score(CLASSES),
        classification.MulticlassAUROC(CLASSES),
    ):
        assert torch.equal(given(metric, logits, labels)[0], logits.softmax(-1))
    assert torch.equal(given(TokenLoss(), logits, labels)[0], logits)


def test_class_numbers_as_predictions():
    """Logits reduced by `preprocess_logits_for_metrics`."""
    logits, labels = tokens()
    metric = classification.MulticlassAccuracy(CLASSES, average="micro")
    assert said(metric, logits.argmax(-1), labels) == said(metric.clone(), logits, labels)


@pytest.mark.parametrize(
    "metric",
    [
        classification.MulticlassExactMatch(CLASSES, ignore_index=-100),
        classification.MultilabelExactMatch(CLASSES),
        classification.MulticlassAccuracy(CLASSES, multidim_average="samplewise"),
        ClasswiseWrapper(
            classification.MulticlassAccuracy(CLASSES, average=None, multidim_average="samplewise")
        ),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_metrics_that_compare_whole_samples_are_refused(metric):
    """Flattened dimensions would silently make other numbers of them."""
    with pytest.raises(ValueError, match=r"compares whole samples.*prepare=function"):
        input_family(metric)


def test_metric_inputs_of_values():
    predictions, labels = torch.randn(7, 1), torch.randn(7)
    assert said(regression.MeanSquaredError(), predictions, labels) == functional.mse_loss(
        predictions[:, 0], labels
    )
    labels[0] = -100.0
    assert len(given(regression.MeanSquaredError(), predictions, labels)[1]) == 7, (
        "a value of -100 is a value"
    )


def test_metric_inputs_first_of_several_predictions():
    logits, labels = tokens()
    for predictions in (
        (logits, torch.ones(3)),
        {"logits": logits, "more": (torch.ones(1),)},
        [(logits,)],
    ):
        assert torch.equal(
            given(TokenLoss(), predictions, (labels,))[0], given(TokenLoss(), logits, labels)[0]
        )


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.MeanMetric(),
        text.BLEUScore(),
        text.Perplexity(),
        retrieval.RetrievalMAP(),
        segmentation.MeanIoU(3),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_metrics_without_a_rule(metric):
    """Those metrics would misread logits, or fail without a remedy."""
    with pytest.raises(
        ValueError,
        match=rf"{type(metric).__name__} does not take logits.*prepare=function",
    ):
        input_family(metric)


def test_wrapped_and_derived_metrics():
    class Own(classification.MulticlassAccuracy):
        pass

    accuracy = classification.BinaryAccuracy()
    for metric in (ClasswiseWrapper(Own(CLASSES, average=None)), Own(CLASSES)):
        assert input_family(metric) == "Multiclass"
    for metric in (accuracy + 1, 1 - accuracy, accuracy * accuracy):
        assert input_family(metric) == "Binary"


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (
            torch.zeros(3, 4),
            torch.zeros(3, 5, dtype=torch.long),
            r"shape \(3, 4\) do not fit labels of shape \(3, 5\)",
        ),
        (torch.zeros(3, 4), (torch.zeros(3), torch.zeros(3)), "labels are a tuple of 2"),
        (torch.zeros(3, 4), None, "labels are a NoneType"),
        (["text"], torch.zeros(3), "first prediction is a str"),
        ((), torch.zeros(3), "first prediction is a tuple"),
    ],
)
def test_metric_inputs_that_do_not_fit(predictions, labels, message):
    with pytest.raises(ValueError, match=f"{message}.*prepare=function"):
        metric_inputs("Multiclass", predictions, labels)


def test_metric_inputs_binary_metric_of_three_classes():
    with pytest.raises(ValueError, match="logits of 3 classes, not 2"):
        given(classification.BinaryAccuracy(), torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
