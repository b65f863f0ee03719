"""Machines made on this one, and the scripts that they run."""
