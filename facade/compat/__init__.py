"""Helper functions of the reference that scripts import and the package itself does not use.

Others that have nothing to do with the Trainer are the library's own. May import any room of the
facade; none imports this one.
"""
