"""Figures, logs and alerts."""
