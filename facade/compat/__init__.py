"""Functions of the reference's `trainer_utils` that scripts import and nothing here needs.

They behave as those of the reference do. May import any room of the facade; none imports this one.
"""
