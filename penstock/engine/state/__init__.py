"""Keyed state of folds, in Arrow files beside the checkpoint."""
