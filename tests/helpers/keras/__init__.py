"""Keras models, and scripts with the TFTrainer."""
