"""Object stores: how the one of the settings is reached, and a bucket of it."""
