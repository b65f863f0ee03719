"""Stand-in for `transformers` where it is not installed, for scripts that bring their own model."""
