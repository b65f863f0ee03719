"""Functions of the reference's `trainer_utils` and its neighbours that scripts import, and nothing else here needs.

The Trainer does not use them. They behave as those of the reference do.
"""
