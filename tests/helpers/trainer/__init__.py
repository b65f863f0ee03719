"""The smallest trainings of the Trainer."""
