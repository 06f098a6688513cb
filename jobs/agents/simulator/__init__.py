"""Simulates a fleet of agents whose absences are known, and checks whether the streams found them."""
