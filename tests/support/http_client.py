"""The HTTP client of tests."""

from __future__ import annotations

import httpx

# A client of its own per request would load the system's certificates each time, for 20 ms of CPU time. Connections
# are not kept: a test may restart the server between two requests.
HTTP = httpx.Client(timeout=30, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
