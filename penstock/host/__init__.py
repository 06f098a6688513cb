"""Processes, files and secrets of this machine."""
