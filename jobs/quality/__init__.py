"""Topic quality: valid and invalid records of every topic, counted per second."""
