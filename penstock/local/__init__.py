"""The embedded parts for one machine: what each is, how it starts and stops."""
