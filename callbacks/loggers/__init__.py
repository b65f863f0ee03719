"""One callback for each tracker in `report_to`; clients are imported when used.

The table of trackers is in `availability`.
"""
