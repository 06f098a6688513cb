"""`penstock demo`: change rows of the demo database, which captures follow."""

from __future__ import annotations

import random
import time
from typing import Annotated

import typer

from penstock.capture.source import connections
from penstock.cli.output import clear_errors, console, table
from penstock.devstack.demo_database import DemoDatabase
from penstock.errors import PenstockError
from penstock.settings import settings

app = typer.Typer(no_args_is_help=True, help="Change rows of the demo database, which captures follow.")

Table = Annotated[str, typer.Argument(help="accounts, tests, labels, alert_rules or businesses.")]
Pairs = Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE...", help="Columns and their values.")]
Key = Annotated[str, typer.Argument(help="The primary key: `3`, or `test_id=1,name=region`.")]


def demo() -> DemoDatabase:
    """The demo database of this machine's platform."""
    url = connections.url(connections.DEMO, "mysql").render_as_string(hide_password=False)
    return DemoDatabase(url, settings().project / "sql" / "tables")


def _pairs(arguments: list[str]) -> dict[str, str]:
    pairs = {}
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if not sign:
            raise PenstockError("this is no COLUMN=VALUE", got=argument, hint="e.g. name='New name'")
        pairs[name] = value
    return pairs


def _key(argument: str) -> dict[str, str]:
    return _pairs(argument.split(",")) if "=" in argument else {"id": argument}


@app.command()
def create() -> None:
    """Create missing tables with some rows. `penstock up` does this for the embedded database."""
    with clear_errors():
        created = demo().create()
    console().print(f"created {', '.join(created)}" if created else "all tables exist")


@app.command()
def show(name: Table) -> None:
    """Print the rows of a table."""
    with clear_errors():
        names, rows = demo().rows(name)
    lines = table(names)
    for row in rows:
        lines.add_row(*map(str, row))
    console().print(lines)


@app.command()
def add(name: Table, values: Pairs) -> None:
    """Insert a row."""
    with clear_errors():
        key = demo().add(name, _pairs(values))
    console().print(f"added to {name}: {', '.join(f'{k}={v}' for k, v in key.items())}")


@app.command()
def edit(name: Table, key: Key, values: Pairs) -> None:
    """Change a row."""
    with clear_errors():
        _print_changed(demo().edit(name, _key(key), _pairs(values)), name, key)


@app.command()
def remove(
    name: Table,
    key: Key,
    hard: Annotated[
        bool, typer.Option("--hard", help="Delete the row; captures find this only by a reconcile.")
    ] = False,
) -> None:
    """Mark a row as deleted, or delete it."""
    with clear_errors():
        _print_changed(demo().remove(name, _key(key), hard=hard), name, key)


def _print_changed(rows: int, name: str, key: str) -> None:
    if not rows:
        raise PenstockError(f"table {name} has no such row, or the row has these values already", got=key)
    console().print(f"{name} {key}: done")


@app.command()
def live(
    every: Annotated[float, typer.Option(help="Seconds between two changes.")] = 1.0,
    changes: Annotated[int, typer.Option(help="Number of changes; 0 for no limit.")] = 0,
) -> None:
    """Make random changes of rows, one after the other, until Ctrl-C."""
    with clear_errors():
        database, chance, done = demo(), random.Random(), 0
        try:
            while not changes or done < changes:
                console().print(_change(database, chance))
                done += 1
                time.sleep(every)
        except KeyboardInterrupt:
            pass


def _change(database: DemoDatabase, chance: random.Random) -> str:
    _, accounts = database.rows("accounts", 1000)
    account = str(chance.choice(accounts)[0]) if accounts else ""
    _, tests = database.rows("tests", 1000)
    match chance.randrange(6) if accounts else 0:
        case 0:
            name = f"Company {chance.randrange(10**6)}"
            return f"accounts: added {database.add('accounts', {'name': name})['id']}, {name}"
        case 1:
            kind = chance.choice(["http", "dns", "ping", "page"])
            values = {
                "account_id": account,
                "name": f"Test {chance.randrange(10**6)}",
                "kind": kind,
                "target": "x.example",
            }
            return f"tests: added {database.add('tests', values)['id']} to account {account}"
        case 2 if tests:
            test, seconds = str(chance.choice(tests)[0]), str(chance.choice([60, 300, 600, 900]))
            database.edit("tests", {"id": test}, {"every_seconds": seconds})
            return f"tests: {test} runs every {seconds} s"
        case 3 if len(tests) > 3:
            test = str(chance.choice(tests)[0])
            database.remove("tests", {"id": test}, hard=False)
            return f"tests: {test} deleted"
        case 4:
            threshold = f"{chance.uniform(0.5, 10):.3f}"
            key = database.add("alert_rules", {"account_id": account, "metric": "pageLoadTime", "threshold": threshold})
            return f"alert_rules: added {key['id']}, over {threshold}"
        case _:
            plan = chance.choice(["trial", "standard", "enterprise"])
            database.edit("accounts", {"id": account}, {"plan": plan})
            return f"accounts: {account} has plan {plan}"
