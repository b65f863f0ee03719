"""Functions of the reference's `trainer_utils` that scripts import and nothing here needs.

The Trainer does not use them. They behave as those of the reference do.
"""
