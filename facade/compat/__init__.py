"""Helper functions of the reference that scripts import and the package itself does not use.

They behave as those of the reference do. May import any room of the facade; none imports this one.
"""
