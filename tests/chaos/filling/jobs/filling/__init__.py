"""What is filled and rebuilt while its process is killed."""
