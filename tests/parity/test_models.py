"""Every kind of model trains, evaluates and predicts to the same bits as with the reference."""

import numpy as np
import pytest

from helpers.parity.harness import Case, assert_parity, assert_same, run
from helpers.parity.parity_datasets import (
    class_data,
    labelled_sentences,
    point_data,
    points,
    sentence_data,
    sentences,
)
from helpers.parity.parity_models import (
    Classifier,
    ObjectClassifier,
    TokenModel,
    TupleClassifier,
    VectorClassifier,
    bert,
    gpt2,
    t5,
)

EVALUATED = {"eval_strategy": "steps", "eval_steps": 4}


def accuracy(prediction) -> dict[str, float]:
    return {
        "accuracy": float(
            (np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean()
        )
    }


CASES = {
    "plain module, dict": Case(Classifier, point_data, EVALUATED, test=lambda: points(7, seed=21)),
    "plain module, tuple": Case(
        TupleClassifier, point_data, EVALUATED, test=lambda: points(7, seed=21)
    ),
    "plain module, bare tensor": Case(
        VectorClassifier, point_data, EVALUATED, test=lambda: points(7, seed=21)
    ),
    "plain module, labels hidden in predict": Case(
        Classifier, point_data, test=lambda: [{"x": item["x"]} for item in points(7, seed=21)]
    ),
    "number of items": Case(
        TokenModel, sentence_data, EVALUATED, test=lambda: sentences(7, seed=22)
    ),
    "gpt2": Case(gpt2, sentence_data, EVALUATED, test=lambda: sentences(7, seed=22)),
    "bert, metrics": Case(
        bert,
        class_data,
        EVALUATED,
        extras=lambda api: {"compute_metrics": accuracy},
        test=lambda: labelled_sentences(7, seed=23),
    ),
    "t5": Case(
        t5, sentence_data, EVALUATED, test=lambda: sentences(8, seed=24, shortest=5, longest=5)
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("accumulation", [1, 4])
def test_models_give_the_same_bits(reference, ours, tmp_path, name, accumulation):
    """22 samples are 6 batches, the last of 2, and windows of 4 and 2; two epochs, shuffled,
    dropout on.
    """
    case = CASES[name].but(arguments={"gradient_accumulation_steps": accumulation})
    expected, actual = assert_parity(reference, ours, case, tmp_path)
    assert expected.predictions is not None
    assert actual.state["global_step"] == (12 if accumulation == 1 else 4)


def test_tied_weights_stay_tied(ours, tmp_path):
    trained = run(ours, CASES["gpt2"], tmp_path).trainer.model
    assert trained.lm_head.weight is trained.transformer.wte.weight


def test_models_output_object_with_a_loss(reference, ours, tmp_path):
    """The reference takes no such object, so the standard is its run of the model that returns
    the same as a dict.
    """
    case = Case(Classifier, point_data, EVALUATED, test=lambda: points(7, seed=21))
    expected = run(reference, case, tmp_path / "reference")
    actual = run(ours, case.but(model=ObjectClassifier), tmp_path / "ours")
    assert_same(expected, actual)


def test_models_module_with_the_default_collator(reference, ours, tmp_path):
    """The default collator takes `label` for `labels`, keeps floats and drops what the model
    does not name.
    """

    def data():
        items = [
            {"x": item["x"].tolist(), "label": int(item["labels"]), "name": "unused"}
            for item in points(10)
        ]
        return {"train_dataset": items, "eval_dataset": items[:5]}

    assert_parity(reference, ours, Case(Classifier, data, {"eval_strategy": "epoch"}), tmp_path)
