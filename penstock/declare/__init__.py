"""What is declared: topics, inputs, outputs, promises, streams, captures. Needs neither Spark nor a broker."""
