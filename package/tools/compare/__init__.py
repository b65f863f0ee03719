"""`lightrainer compare`: run a script with the reference and with ours, and show the differences.

`command` runs both sides (`runs`), in which `recorder` writes a record; `findings` reads it, `differences` compares,
and `known` has the reasons of differences; `verdict` and `page` show the result.
"""
