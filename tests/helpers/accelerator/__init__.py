"""Calls that are made on the accelerator of both libraries."""
