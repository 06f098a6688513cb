"""The DAGs that read no declarations when they are parsed.

A file of its own: a module in jobs/ that hangs or ends its process stops neither heartbeats nor the reaper.
"""

from penstock.airflow.dags import declare_dags

globals().update(declare_dags("heartbeat", "reaper"))
