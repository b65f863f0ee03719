"""Small modules, data and trainers of plain Lightning."""
