"""`trainer.accelerator`: the members of accelerate's object, over Lightning and torch.

Here: the backward pass, collectives, models and loaders of custom loops. Not here: what depends on
the strategy, which the `Strategy` of the run implements (`facade/strategies`). Imports arguments,
distributed and strategies.
"""
