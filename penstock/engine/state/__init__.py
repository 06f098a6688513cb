"""The state of folds: Arrow files by part, committed batch by batch in the checkpoint."""
