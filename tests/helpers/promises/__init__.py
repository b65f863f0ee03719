"""Every kind of user code that a promise of the README concerns."""
