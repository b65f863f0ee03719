"""Scripts of users, and what runs them, for tests of the command line, examples and pages."""
