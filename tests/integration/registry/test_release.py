"""A release registers the schemas that its app writes by, or is refused in the registry's words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.catalog import partial_catalog
from penstock.control import Actor, Control, connect
from penstock.devstack import doctor
from penstock.devstack.platform import Platform
from penstock.devstack.releases import release_what_changed
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.errors import ReleaseRefused
from penstock.registry import client
from penstock.settings import settings
from penstock.supervision import release
from tests.chaos.projects import other_project
from tests.support.avro_cases import field, schema_text
from tests.support.caches import unload_jobs
from tests.support.long_cases import quick
from tests.support.schema_registry import close_clients

pytestmark = pytest.mark.integration

STREAM = """
from penstock.streams import *
ORDERS = Topic("{topic}", schema={form}('{schema}'))
REFUNDS = Topic("{topic}-refunds", schema={form}('{refunds}', subject="{topic} refunds"))
STREAM = Stream("orders", "shop", {{"rows": Input(Topic("in"))}}, lambda rows: rows,
                {{"order": TopicOutput(ORDERS, value=("id",)), "refund": TopicOutput(REFUNDS, value=("id",))}},
                Stateless())
"""
LONG, TEXT, DOUBLE = (schema_text([field("id", of)]) for of in ("long", "string", "double"))
# A schema, one that is not compatible with it, and one that is; and what the registry says.
VERSIONS = {
    "Avro": (LONG, TEXT, DOUBLE, "STRING not compatible"),
    "JsonSchema": (
        *(
            f'{{"type": "object", "properties": {{"id": {{"type": "{of}"}}}}}}'
            for of in ("integer", "string", "number")
        ),
        "SUBSCHEMA_TYPE_CHANGED",
    ),
    "Protobuf": (
        *(
            f'syntax = "proto3"; message Order {{ {of} id = 1; }} {more}'
            for of, more in (("int64", ""), ("string", ""), ("int64", "message Other { int64 id = 1; }"))
        ),
        "type",
    ),
}
ME = Actor("me", "cli")


@pytest.fixture
def control(
    schema_registry: SchemaRegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Control]:
    real, fits = release._run_check, {"refused": list[str]()}
    monkeypatch.setattr(release, "_run_check", lambda c, *of: real(c, *of) if c[0] == "penstock.catalog" else fits)
    variables = {
        "PENSTOCK_HOME": tmp_path / "home",
        "PENSTOCK_CONTROL_URL": f"sqlite:///{tmp_path}/control.db",
        "PENSTOCK_SCHEMA_REGISTRY_URL": schema_registry.url,
    }
    with other_project(tmp_path / "project", variables):
        control = connect()
        control.migrate()
        yield control
        control.engine.dispose()
    close_clients()


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex[:8]}"


def declare(control: Control, topic: str, schema: str, refunds: str = LONG, form: str = "Avro") -> None:
    folder = settings().project / "jobs" / "shop"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orders.py").write_text(STREAM.format(topic=topic, schema=schema, refunds=refunds, form=form))
    unload_jobs()
    partial_catalog.cache_clear()
    control.sync(partial_catalog()[0])


@pytest.mark.parametrize("form", quick(VERSIONS, "Avro"))
def test_schemas_are_registered_at_the_release_or_none_of_them(control: Control, topic: str, form: str) -> None:
    first_text, wrong, wider, words = VERSIONS[form]
    kind = {"Avro": "AVRO", "JsonSchema": "JSON", "Protobuf": "PROTOBUF"}[form]
    declare(control, topic, first_text, first_text, form)
    assert client.subject_schemas(f"{topic}-value", kind) == {}
    assert release.release(control, "shop", ME) == 1
    [first] = client.subject_schemas(f"{topic}-value", kind)
    assert client.registered_id(f"{topic} refunds", first_text, kind) == first
    declare(control, topic, wrong, wider, form)
    with pytest.raises(ReleaseRefused, match=rf"app shop writes by cannot be registered.*{words}") as e:
        release.release(control, "shop", ME)
    assert "hint: keep the fields and types that there are" in str(e.value)
    assert [list(client.subject_schemas(name, kind)) for name in (f"{topic}-value", f"{topic} refunds")] == [
        [first]
    ] * 2
    assert control.releases("shop")[0].number == 1
    declare(control, topic, first_text, wider, form)
    assert release.release(control, "shop", ME) == 2
    assert len(client.subject_schemas(f"{topic} refunds", kind)) == 2
    assert release.release(control, "shop", ME, to="1") == 3, "its schemas are registered"


def test_the_schemas_of_an_app_that_never_ran_are_registered_when_the_platform_starts(
    control: Control, topic: str
) -> None:
    declare(control, topic, LONG)
    catalog = partial_catalog()[0]
    assert release_what_changed(control, catalog, {"orders"}, ()).problems == []
    assert len(client.subject_schemas(f"{topic}-value", "AVRO")) == 1
    assert "all 2 that apps write by" in schemas_of_doctor().found
    declare(control, topic, DOUBLE)
    check = schemas_of_doctor()
    assert (check.found, check.hint) == (f"not registered as declared: {topic}-value", "penstock streams release shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PENSTOCK_SCHEMA_REGISTRY_URL")
        settings.cache_clear()
        result = release_what_changed(control, catalog, {"orders"}, ())
    assert "cannot be registered: no schema registry is configured" in str(result.problems[0])
    assert result.left_out == {"orders"}


def schemas_of_doctor() -> doctor.DoctorCheck:
    [check] = doctor._schemas(Platform())
    return check
