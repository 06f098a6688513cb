"""A small project with a declaration of every kind."""
