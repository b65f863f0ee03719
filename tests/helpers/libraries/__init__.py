"""Scripts that train with TRL, sentence-transformers, PEFT and SetFit."""
