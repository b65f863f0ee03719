"""`lightrainer compare`: run a script with the reference and with ours, and show the differences.

`command` runs both sides (`runs`), in which `recorder` writes a record; `findings` reads it,
`differences` compares, `known` has the reasons of differences, and `verdict` shows the result.
"""
