"""Clients of trackers, recorded or without a network, and what they wrote."""
