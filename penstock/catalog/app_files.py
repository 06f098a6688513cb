"""Which apps a changed file concerns: those with a declaration in its folder, and those whose modules import it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from penstock.catalog.catalog import Catalog
from penstock.catalog.partial import declaring_app, declaring_files, folders_of_app


def files_of_apps(
    paths: Iterable[str], content: Mapping[str, bytes], apps: Iterable[str], catalog: Catalog
) -> dict[str, list[str]]:
    """Those of some files that each app may read.

    A file that declares something concerns the apps for which it does, and those that import it. One that is in the
    folder of no app may be read by all, but for modules that nothing reads.

    Args:
        paths: Paths in the project, with slashes.
        content: The files of the project.
        apps: Names of apps.
        catalog: What all apps declare, as far as it can be read.
    """
    asked = list(apps)
    folders = {app: folders_of_app(app, catalog) for app in (*asked, *catalog.apps)}
    everyones = set().union(*folders.values())
    declaring = _declaring(content, catalog)
    of_others = {app: {path for path, own in declaring.items() if declaring_app(app) not in own} for app in folders}
    imported = {app: _imported(content, own, of_others[app]) for app, own in folders.items()}
    # The catalog reads them, and SQL may name their topics.
    read = {path for path in content if PurePosixPath(path).match("jobs/*/*.py")} - set().union(*imported.values())

    def concerns(path: str, app: str) -> bool:
        names = set(PurePosixPath(path).parent.parts)
        if path in imported[app] or path in of_others[app]:
            return path in imported[app]
        if names & folders[app]:
            return True
        return (not path.endswith(".py") or path in read) and not names & everyones

    return {app: [path for path in paths if concerns(path, app)] for app in asked}


def _declaring(content: Mapping[str, bytes], catalog: Catalog) -> dict[str, set[str | None]]:
    """The apps for which each file declares something, by its path in the project."""
    by_file = declaring_files(catalog)
    return {
        path: apps for file, apps in by_file.items() for path in content if file == path or file.endswith(f"/{path}")
    }


def _imported(content: Mapping[str, bytes], folders: set[str], left_out: set[str]) -> set[str]:
    """Modules in the folders, and those that they import, directly or through others."""
    modules = [path for path in content if path.endswith(".py") and path not in left_out]
    waiting = [path for path in modules if set(PurePosixPath(path).parent.parts) & folders]
    reached = set(waiting)
    while waiting:
        for path in _imports(waiting.pop(), content):
            if path not in reached:
                reached.add(path)
                waiting.append(path)
    return reached


def _imports(path: str, content: Mapping[str, bytes]) -> Iterator[str]:
    try:
        tree = ast.parse(content[path])
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = Path(path).parents[node.level - 1].as_posix().replace("/", ".") if node.level else ""
            module = ".".join(filter(None, [package, node.module]))
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield from _modules(name, content)


def _modules(name: str, content: Mapping[str, bytes]) -> Iterator[str]:
    """The files of a module and of the packages that it is in."""
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        place = "/".join(parts[:n])
        for path in (f"{place}.py", f"{place}/__init__.py"):
            yield from (found for found in (path, f"src/{path}") if found in content)
