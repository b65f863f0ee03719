"""A Hub on this machine, and its client."""
