"""What is promised about speed and memory, each a script that prints ratios measured in one run."""
