"""`lightrainer compare`: run a script with transformers and with lightrainer, and compare them.

`command` runs both sides (`runs`); in each of them `recorder` writes a record. `results` reads the
records and files, `differences` compares them, and `report` formats the comparison.
"""
