"""Simulates a crowd of devices whose walk-ins are known, and checks whether the streams found them."""
