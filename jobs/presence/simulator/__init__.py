"""Devices whose visits are known: sends their probes and CRM events, and compares the walk-ins found with the truth."""
