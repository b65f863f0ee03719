"""Compares results to the last bit."""
