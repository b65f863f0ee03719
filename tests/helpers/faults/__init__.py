"""Trainings and sweeps that are killed, or run out of disk space."""
