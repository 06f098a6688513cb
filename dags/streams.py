"""The DAGs that follow the declarations.

One file: Airflow parses each file every minute, and each that reads the declarations costs a second of CPU.
"""

from penstock.airflow.dags import declare_dags

globals().update(
    declare_dags(
        "streams", "captures", "backfills", "partitions", "archives", "operate", "release", "replace", "rebuild"
    )
)
