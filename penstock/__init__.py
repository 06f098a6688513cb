"""Penstock: Airflow-orchestrated streams on Spark and Kafka."""

__version__ = "0.2.0"
