"""Which folders the platform of one machine can work in."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.engine.checkpoint import s3a
from penstock.errors import HostError
from penstock.settings import LIBRARY, Settings

# Of each: what takes it for something else.
SPECIAL = {
    ":": "separates folders of Python's and Java's paths",
    ",": "separates folders in settings of Kafka and Spark",
    "\\": "escapes characters in Spark's paths",
    '"': "ends a text in settings of the servers",
    "%": "begins a variable in Airflow's settings",
    "#": "begins the fragment of a URL",
    "?": "begins the query of a URL",
    **dict.fromkeys("*[]{}", "makes a pattern of Spark's paths"),
}


def check(what: str, folder: Path) -> None:
    """Refuse a folder in which servers, Spark or Airflow would fail, or work in another one.

    Args:
        what: What the folder is.
        folder: Its whole path.

    Raises:
        HostError: Its path has a character that stands for something else.
    """
    for character in str(folder):
        reason = SPECIAL.get(character) or ("" if character.isprintable() else "cannot be printed")
        if reason:
            shown = character if character.isprintable() else ascii(character)
            raise HostError(
                f"the path of {what} contains the character {shown}, which {reason}",
                got=folder,
                hint=f"rename the folder, or choose another one, without any of {' '.join(SPECIAL)}",
            )


def check_all(s: Settings) -> None:
    """Refuse the folders of a platform by `check`."""
    folders = {
        "the project": s.project,
        "PENSTOCK_HOME": s.home,
        "PENSTOCK_CACHE": s.cache,
        "Python's environment": Path(sys.prefix),
        "Penstock": LIBRARY,
    }
    if not s3a.is_object_store(s.checkpoint_root):
        folders["PENSTOCK_CHECKPOINTS"] = Path(s.checkpoint_root.removeprefix("file://"))
    for what, folder in folders.items():
        check(what, folder)
