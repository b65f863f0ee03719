"""Tables of what each argument of a training does, or why it is refused."""
