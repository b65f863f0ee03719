"""Pictures of runs with matplotlib, and the report of a run."""
