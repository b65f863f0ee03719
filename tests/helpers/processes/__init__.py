"""Starts programs, ranks and torchrun, and waits for their ends."""
