"""Databases that captures read: MariaDB and MySQL, PostgreSQL, SQLite."""
