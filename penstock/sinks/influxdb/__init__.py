"""InfluxDB 1.x as a sink."""
