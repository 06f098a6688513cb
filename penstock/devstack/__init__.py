"""The development stack: embedded servers for one machine."""
