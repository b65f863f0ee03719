"""Scripts of several ranks, also under DeepSpeed, and what they share."""
