"""Keras models as torch trains them: their variables, their data, the numbers of their optimizers.

Nothing here imports keras or TensorFlow before a model of theirs is there. What `TFTrainer` makes
of it is in `facade/keras/`. May import every other room but `search` and `tokenization`.
"""
