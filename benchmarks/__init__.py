"""Measure the promises about speed and memory, each by a script that prints ratios of one run."""
