"""Pages and pictures of runs, and the parts of which other pages are made."""
