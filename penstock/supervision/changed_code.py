"""Which files of an app differ between its release and the disk.

`python -m penstock.supervision.changed_code` prints how many, in a process that may import a project's code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from penstock.catalog import Catalog, load_partial
from penstock.catalog.app_files import files_of_apps
from penstock.control import Control, connect
from penstock.errors import ReleaseRefused
from penstock.host.child_output import redirect_stdout, write_result
from penstock.settings import settings
from penstock.supervision import code_snapshot, released_code


def changed_files(control: Control, catalog: Catalog) -> Mapping[str, Sequence[str]]:
    """The files of each app that differ between its release and the disk.

    Raises:
        ReleaseRefused: The files on the disk cannot be read.
    """
    on_disk = code_snapshot.read_project(settings().project)
    apps_by_digest: dict[str, list[str]] = {}
    all_apps = control.apps()
    for app in all_apps:
        if app.digest:
            apps_by_digest.setdefault(app.digest, []).append(app.name)
    changed: dict[str, list[str]] = {}
    for digest, apps in apps_by_digest.items():
        try:
            released = released_code.files_of(control, digest)
        except ReleaseRefused:
            # A snapshot that is damaged is replaced too.
            released = {}
        paths = code_snapshot.changed_paths(released, on_disk)
        of_all = files_of_apps(paths, {**released, **on_disk}, [app.name for app in all_apps], catalog)
        changed |= {app: of_all[app] for app in apps}
    return {app: paths for app, paths in changed.items() if paths}


if __name__ == "__main__":
    out = redirect_stdout()
    try:
        answer = {app: len(paths) for app, paths in changed_files(connect(), load_partial(combiners=False)[0]).items()}
    except Exception as e:
        sys.exit(f"error: {e}")
    write_result(out, answer)
