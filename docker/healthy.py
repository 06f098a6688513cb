"""`healthy.py URL [COMPONENT...]`: exit code 0 if the URL answers, and calls each component of Airflow healthy.

Run by Docker every few seconds, so it is made of the standard library alone: `airflow jobs check` takes seconds.
"""

from __future__ import annotations

import json
import sys
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener


def main(url: str, *components: str) -> str:
    """Empty if all is well, else what is wrong."""
    try:
        # Proxies of the environment do not stand before the platform's own parts.
        with build_opener(ProxyHandler({})).open(url, timeout=5) as answer:
            text = answer.read()
        states = {name: (json.loads(text).get(name) or {}).get("status") for name in components}
    except (URLError, OSError, ValueError) as e:
        return f"{url}: {e}"
    return "; ".join(f"{name} is {state}" for name, state in states.items() if state != "healthy")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or 0)
