"""Alembic migrations of the control database's schema."""
