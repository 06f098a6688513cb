"""Embedded servers: broker, databases, stores, Spark, Airflow."""
