"""The DAGs of a project that has no folder of DAGs of its own; see the documentation of `penstock.airflow.dags`."""

from penstock.airflow.dags import declare_dags, lacks_dags

if lacks_dags():
    globals().update(declare_dags())
