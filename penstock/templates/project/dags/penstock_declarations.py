"""Reports invalid declarations in Airflow's list of import errors. It has no DAG."""

from penstock.airflow.dags import check_declarations

check_declarations()
