"""Errors of Spark in one line."""

from __future__ import annotations

CALL = "An error occurred while calling "


def root_message(cause: BaseException | None) -> str:
    """The line that says what went wrong: Spark wraps an error in stack traces of Java and Python."""
    if cause is None:
        return "the query ended by itself"
    lines = str(cause).splitlines()
    message = next((line.strip() for line in lines if line.strip()), type(cause).__name__)
    behind_traceback = False
    for line in lines:
        if "Traceback (most recent call last):" in line:
            behind_traceback = True
        elif behind_traceback and line[:1].strip():
            message, behind_traceback = line, False
        elif line.startswith("Caused by: "):
            message = line.removeprefix("Caused by: ")
    if CALL in message:
        # The error follows the call.
        message = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), message)
    return message.removeprefix("penstock.errors.")[:1000]
