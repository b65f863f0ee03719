"""What `trainer.accelerator` is made of: one concern a file; `facade/accelerator.py` puts them together."""
