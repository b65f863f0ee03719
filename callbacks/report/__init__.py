"""Pictures of runs with matplotlib, and the report on a run."""
