"""A `transformers` for where there is none: what a script needs that brings its own model."""
