"""`lightrainer compare`: a script with the reference and with lightrainer, and what differs.

`command` reads the command line, `sides` runs the script twice, in a `working_folder` each, `recorder` is what both
processes run beside it, `reading` reads what they left, `differences` finds the places, `known` says why, `text` and
`page` show it.
"""
