"""Access to the S3 object store."""
