"""`trainer.accelerator`: one concern a file; `facade/accelerator.py` puts them together."""
