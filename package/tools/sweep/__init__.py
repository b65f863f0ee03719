"""`lightrainer sweep`: run a script many times to find its best arguments.

`command` reads the command line, `space` the values to try; `workers` take trials from the study
and run the script for each (`trial_script`). In it, `facade/arguments/sweep_trial.py` applies the
values; a plain `lightning.Trainer` gets the callbacks of `lightning`.
"""
