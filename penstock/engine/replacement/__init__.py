"""Replacement of a running stream: its new version builds its state beside it, is compared with it and takes over."""
