"""What all sinks share: a statement as a stream, documents, versions, document ids."""
