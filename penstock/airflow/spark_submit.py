"""The command line of a stream's driver from an Airflow connection, as Airflow's own `SparkSubmitHook` builds it.

The one place that uses private parts of the hook: `_connection`, `_name`, `_properties_file` and
`_build_spark_submit_command`. Tried with apache-airflow-providers-apache-spark 6.3.4 on Airflow 3.3.2; check them
when requirements.in pins another version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.supervision.cluster_drivers import ClusterSubmission


def spark_submit(conn_id: str, app: str, incarnation: str) -> Sequence[str] | ClusterSubmission:
    """The command line of an app's driver, or what a cluster is to start.

    Args:
        conn_id: Spark connection; without it the master of the settings is used.

    Raises:
        HostError: The connection asks for what spark-submit cannot do with Python.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    from penstock.engine.session import submit_conf
    from penstock.errors import HostError
    from penstock.settings import settings
    from penstock.supervision import launch
    from penstock.supervision.cluster_drivers import ClusterSubmission

    hook = SparkSubmitHook(conn_id=conn_id, application_args=launch.driver_arguments(app, incarnation))
    try:
        SparkSubmitHook.get_connection(conn_id)
    except AirflowNotFoundException:
        # Without a connection the hook would take yarn.
        hook._connection["master"] = settings().spark_master
    # Some settings follow from the master, which only the connection knows.
    conf = submit_conf(app, hook._connection["master"])
    if settings().deploy == "cluster":
        return ClusterSubmission(app, incarnation, hook._connection["master"], conf)
    del conf["spark.master"]
    hook._name = conf.pop("spark.app.name")
    hook._properties_file = str(launch.write_spark_conf(app, conf))
    if hook._connection["deploy_mode"] == "cluster":
        raise HostError(
            f"the connection {conn_id} asks for deploy mode cluster",
            hint="let it say client, and set PENSTOCK_DEPLOY=cluster: spark-submit takes no Python there",
        )
    program, *words = hook._build_spark_submit_command(str(launch.DRIVER))
    return [program, "--load-spark-defaults", *words]
