"""`trainer.accelerator`: the members of accelerate's object, over Lightning and torch.

Here: the backward pass, collectives, models and loaders of loops of one's own. Not here: what depends on the strategy,
which the `Strategy` of the run answers (`facade/strategies`). Imports arguments, distributed and strategies.
"""
