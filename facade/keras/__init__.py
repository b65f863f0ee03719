"""`TFTrainer` and `TFTrainingArguments`, based on the Trainer.

Here: the documented members of the two legacy classes that the Trainer does not have. The torch
modules around Keras models are in `lightning_modules/keras/`. Like `compat`, this is the top of the
facade: it may import all other subpackages.
"""
