"""Small trainings and made-up histories for tests of callbacks."""
