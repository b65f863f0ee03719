"""The usual direction of a metric by its name."""

import pytest

from lightrainer.lightning_modules.common.metric_directions import known_direction

LESS = """
    loss eval_loss valid_loss eval_questions_loss accuracy_loss perplexity wer eval_cer rmse mean_squared_error
    eval_mae error_rate
"""
MORE = """
    accuracy eval_accuracy Accuracy eval_f1_macro macro_f1 f1 bleu sacrebleu rouge1 eval_rougeL exact_match roc_auc
    balanced_accuracy matthews_correlation eval_wikipedia_accuracy top_5_accuracy mcc precision recall eval_r2
"""
UNKNOWN = "score eval_half lossy accuracy_error samples epoch f eval_ x"


@pytest.mark.parametrize(
    ("names", "direction"),
    [(LESS, "minimize"), (MORE, "maximize"), (UNKNOWN, None)],
    ids=["less", "more", "unknown"],
)
def test_metric_direction_by_name(names, direction):
    assert {name: known_direction(name) for name in names.split()} == dict.fromkeys(
        names.split(), direction
    )
