"""Infer from a metric's name whether it is minimized. Imports only the standard library."""

import re

MINIMIZED = """
    bpc brier cer crps distance eer error errors fid fpr hinge mae mape mase mer mse msle nll
    perplexity ppl rmse rmsle runtime ter wer
"""
MAXIMIZED = """
    acc accuracies accuracy auc auprc auroc bertscore bleu chrf chrf++ comet correlation dice f1 f2
    iou jaccard kappa map match matthews mcc meteor mrr ndcg pearson pearsonr precision psnr r2
    recall roc rouge rouge1 rouge2 rougel rougelsum sacrebleu sensitivity spearman spearmanr
    specificity ssim
"""
"""Words in the names of metrics whose direction does not depend on the task."""


def known_direction(name: str) -> str | None:
    """Return `minimize` or `maximize` from the words in a metric's name; None if unknown.

    Losses are minimized, as with the default of `greater_is_better`. Unlike there, error rates,
    perplexities and similar metrics are minimized too.
    """
    words = re.split(r"[^a-z0-9+]+", name.lower())
    less = not set(MINIMIZED.split()).isdisjoint(words)
    more = not set(MAXIMIZED.split()).isdisjoint(words)
    if words[-1].endswith("loss") or (less and not more):
        return "minimize"
    if more and not less:
        return "maximize"
    return None
