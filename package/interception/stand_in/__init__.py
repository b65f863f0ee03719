"""Stand-in for `transformers` if it is not installed, for scripts with their own model."""
