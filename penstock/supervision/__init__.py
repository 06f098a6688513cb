"""Keeps one driver running for each app that has a stream whose desired state is on, and for each open replacement.

It works in short steps that may be repeated, interrupted and run twice at once. `DriversWatch.look` only reads,
`Supervisor.tick` acts; both use `decide`. The control database lets only one of several supervisors launch
(`Control.claim`). If nothing is known about a driver, because the database is down or it runs on another host, it is
not considered dead. The package also has the lifecycle of drivers and the heartbeats. It needs neither Spark nor
Airflow.
"""
