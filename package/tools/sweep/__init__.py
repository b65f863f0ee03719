"""`lightrainer sweep`: run a script many times to find its best arguments.

`command` reads the command line into a `plan`; `workers` take trials from the study and run the `script` for each.
In the script, `facade/arguments/sweep_trial.py` applies the values.
"""
