"""Tokenizers that are made in place, and comparisons of their answers."""
