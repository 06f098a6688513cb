"""What the views of the operator page are answered, as objects for JSON."""
