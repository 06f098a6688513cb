"""Penstock: Airflow-orchestrated streams on Spark and Kafka."""

__version__ = "0.1.0"
