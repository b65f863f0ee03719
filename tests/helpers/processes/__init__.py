"""Start programs, ranks and torchrun, and wait until they exit."""
