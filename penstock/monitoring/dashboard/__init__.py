"""The data of the operator page."""
