"""Optimizers that need whole parameters: with flat parts of them their steps are others, without an error."""

_WORDS = (
    *("adafactor", "adalomo", "apollo", "came", "dadapt", "galore", "grokadam", "lamb", "lars", "lomo", "muon"),
    *("novograd", "prodigy", "shampoo", "sm3", "soap", "stableadam"),
)
"""Parts of the names of optimizers that use rows, columns or norms of parameters, or their order."""


def needs_whole_parameters(name: str) -> bool:
    """Return whether the step of an optimizer depends on more than single numbers of a parameter and its gradient.

    Args:
        name: of an optimizer or its class, such as "stable_adamw", "torch.optim.Adafactor" or "GaLoreAdamW8bit".
    """
    letters = name.lower().replace("_", "")
    return any(word in letters for word in _WORDS)
