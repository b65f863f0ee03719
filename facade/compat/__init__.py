"""Helper functions of the reference that scripts import and the package itself does not use.

Functions that are unrelated to the Trainer remain those of the library. May import any subpackage
of the facade; none imports this one.
"""
