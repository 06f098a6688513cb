"""A schema registry with Confluent's API: schemas by id, subjects, registration."""
