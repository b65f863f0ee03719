"""`lightrainer compare`: run a script with transformers and lightrainer, and compare the results.

`command` runs the script once for each side, with `runs`; during each run `recorder` writes a
record. `results` reads the records and files of a side, `differences` compares them, and `report`
formats the comparison.
"""
