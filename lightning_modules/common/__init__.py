"""What all other rooms build on: seeds, safe serialization, DTensors, suggestions.

Imports no other room.
"""
