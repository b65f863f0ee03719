"""`lightrainer compare`: run a script with transformers and with lightrainer, and compare them.

`command` runs both sides (`runs`); in each of them `recorder` writes a record. `findings` reads the
records, `differences` compares them, `known` has the reasons for differences, and `verdict` formats
the result.
"""
