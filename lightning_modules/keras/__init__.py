"""Train Keras models with torch: their variables, data and optimizers.

keras and TensorFlow are imported only after the script has created a model with them. `TFTrainer`
is in `facade/keras/`. May import every other folder except `search` and `tokenization`.
"""
