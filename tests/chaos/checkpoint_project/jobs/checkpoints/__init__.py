"""An app whose checkpoints are in an object store or a shared folder, so that another host can continue it."""
