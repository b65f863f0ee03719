"""Train Keras models with torch: their variables, data and optimizers.

keras and TensorFlow are not imported before a model of theirs exists. `TFTrainer` is in
`facade/keras/`. May import every other folder except `search` and `tokenization`.
"""
