"""Declarations: topics, inputs, outputs, streams, captures, sinks, views. Needs neither Spark nor a broker."""
