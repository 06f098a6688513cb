"""Airflow's side of Penstock: DAGs, operators, triggers, timetables, connection types and the operator page.

Only this package imports Airflow.
"""
