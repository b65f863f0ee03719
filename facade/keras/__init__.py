"""`TFTrainer` and `TFTrainingArguments`, on the engine of the Trainer.

Belongs here: what the legacy pair documents and the Trainer has not. What Keras models are for
torch is in `lightning_modules/keras/`. The top of the facade, beside `compat`: may import all other
subpackages.
"""
