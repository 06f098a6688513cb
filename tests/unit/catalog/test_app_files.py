"""Which apps a changed file concerns."""

from __future__ import annotations

from penstock.catalog import Catalog, build
from penstock.catalog.app_files import files_of_apps
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput

CONTENT = {
    "jobs/shop/orders.py": b"from common.rates import RATE\nimport jobs.simulator_options",
    "jobs/shop/prices.csv": b"",
    "jobs/shop/loans.py": b"",
    "jobs/bank/rates.py": b"from jobs.bank.own import x",
    "jobs/bank/own.py": b"from ..helpers import y",
    "jobs/bank/fees.csv": b"",
    "jobs/helpers.py": b"",
    "jobs/schemas/topics.py": b"",
    "jobs/schemas/orders.avsc": b"",
    "jobs/simulator_options.py": b"def broken(:",
    "src/common/__init__.py": b"",
    "src/common/rates.py": b"from common import base",
    "src/common/base.py": b"",
    "src/common/unused.py": b"",
    "sql/sinks/orders.sql": b"",
    "sql/quality/rules.sql": b"",
    "pyproject.toml": b"",
}


def declared(name: str, path: str, app: str = "") -> Stream:
    output = TopicOutput(Topic(f"{name}-out"), value="value")
    stream = Stream(name, app or name, {"rows": Input(Topic("in"))}, lambda rows: rows, output, Stateless())
    object.__setattr__(stream, "location", f"/project/{path}:3")
    return stream


def catalog() -> Catalog:
    loans = declared("loans", "jobs/shop/loans.py", app="bank")
    return build([declared("shop", "jobs/shop/orders.py"), declared("bank", "jobs/bank/rates.py"), loans])


def test_a_file_concerns_the_apps_of_its_folder_and_those_that_import_it() -> None:
    concerned = files_of_apps(CONTENT, CONTENT, ["shop", "bank", "sinks"], catalog())
    shared = {"sql/quality/rules.sql", "pyproject.toml", "jobs/schemas/topics.py", "jobs/schemas/orders.avsc"}
    assert {app: set(paths) - shared for app, paths in concerned.items()} == {
        "shop": {
            "jobs/shop/orders.py", "jobs/shop/prices.csv", "jobs/simulator_options.py", "src/common/__init__.py",
            "src/common/rates.py", "src/common/base.py",
        },
        "bank": {
            "jobs/bank/rates.py", "jobs/bank/own.py", "jobs/bank/fees.csv", "jobs/helpers.py",
            "jobs/shop/loans.py", "jobs/shop/prices.csv",
        },
        "sinks": {"sql/sinks/orders.sql"},
    }  # fmt: skip
    assert all(shared <= set(paths) for paths in concerned.values()), "any stream may read them"
    alone = files_of_apps(CONTENT, CONTENT, ["shop"], catalog())
    assert not {"jobs/bank/fees.csv", "jobs/bank/own.py"} & set(alone["shop"]), "they are of an app of another release"
