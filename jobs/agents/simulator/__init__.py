"""Agents whose absences are known: sends their check-ins and sessions, and compares the results with the truth."""
