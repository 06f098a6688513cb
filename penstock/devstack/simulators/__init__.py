"""Simulated devices and agents with known expected output."""
