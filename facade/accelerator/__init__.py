"""`trainer.accelerator`: the members of accelerate's object, over Lightning and torch."""
