#!/bin/sh
# Run once before everything else, and again at every `docker compose up`: each step may be repeated.
set -eu

# Airflow's simple auth manager keeps its passwords in this file, and reads it at every sign-in.
(
    umask 077
    # A new volume of Kubernetes does not take over the folders of the image, as one of Compose does.
    mkdir -p "$(dirname "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE")"
    python -c 'import json, os; print(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))' \
        > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
)

airflow db migrate
penstock migrate
penstock demo create
penstock topics --apply
