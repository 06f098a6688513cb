"""The DAGs of all that is declared in jobs/ and sql/, for Airflow."""

from penstock.airflow.dags import declare_dags

globals().update(declare_dags())
