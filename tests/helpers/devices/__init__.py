"""Stands in for GPUs and TPUs on a machine that has none."""
