"""`lightrainer sweep`: run a script many times to find its best arguments.

`command` reads the command line, and `space` the values to try. `workers` takes trials from the
study, and `trial_script` runs the script for each. In the script's process,
`facade/arguments/sweep_trial.py` applies the values, and `facade/search/sweep_reports.py` reports
the evaluations.
"""
