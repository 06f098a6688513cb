"""ViewInstances of the views: partition assignment and forwarding."""
