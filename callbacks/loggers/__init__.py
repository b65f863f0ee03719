"""One callback for each tracker in `report_to`; the clients are imported when used. `availability` has the table."""
