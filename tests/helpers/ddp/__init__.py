"""Scripts for several ranks, also with DeepSpeed, and their shared code."""
