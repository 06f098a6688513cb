"""An index is replaced by another one or by an alias while its sink runs: no document becomes a dead letter."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Refused, SinkError
from tests.support.elasticsearch import Opened, Server, give, row

pytestmark = pytest.mark.integration

FIELDS = {
    "name": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 8191}}},
    "n": {"type": "long"},
}


def replaced(search: Server, made: dict[str, Any], name: str = "things") -> None:
    search.call("DELETE", "things")
    assert search.call("PUT", name, made)["acknowledged"]


def aliased(search: Server, *indexes: str, **more: Any) -> None:
    actions = [{"add": {"index": index, "alias": "things", **more}} for index in indexes]
    assert search.call("POST", "_aliases", {"actions": actions})["acknowledged"]


@pytest.mark.long
def test_an_alias_of_one_index_is_as_good_as_the_index(opened: Opened, search: Server) -> None:
    """Documents are indexed anew into another, and the alias takes the name: so it is done without a pause."""
    writer = opened()
    give(writer, row("a", 5, {"n": 5}))
    replaced(search, {"mappings": {"properties": {"n": {"type": "long"}}}}, "things-v2")
    aliased(search, "things-v2")
    assert give(writer, row("b", 5, {"n": 5})) == 1
    again = opened()
    assert give(again, row("b", 4, {"n": 4}), row("c", 5, {"name": "c"}), row("d", 5, {"n": 5})) == 2
    assert give(again, row("d", 6)) == 1
    assert search.documents("things-v2") == {"b": {"n": 5}, "c": {"name": "c"}}
    assert search.call("GET", "things-v2/_mapping")["things-v2"]["mappings"]["properties"] == FIELDS


@pytest.mark.parametrize("anew", [False, True])
def test_an_alias_of_several_is_none(opened: Opened, search: Server, anew: bool) -> None:
    writer = opened()
    give(writer, row("a", 5, {"n": 5}))
    replaced(search, {}, "things-v2")
    replaced(search, {}, "things-v3")
    aliased(search, "things-v2", "things-v3")
    with pytest.raises(SinkError, match=r"takes no document.*an alias of things-v2, things-v3.*let one index alone"):
        give(opened() if anew else writer, row("b", 5, {"n": 5}))
    with pytest.raises(SinkError, match=r"takes no document.*an alias of things-v2, things-v3"):
        give(writer, row("a", 6))
    assert search.call("POST", "_aliases", {"actions": [{"remove": {"index": "things-v2", "alias": "things"}}]})
    assert give(writer, row("b", 5, {"n": 5})) == 1


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"mappings": {"_routing": {"required": True}}}, "_routing is required there"),
        ({"mappings": {"properties": {"name": {"type": "long"}}}}, "name has type long, declared is text"),
        ({"settings": {"index.default_pipeline": "nope"}}, "names nope, which is not there"),
        ({"settings": {"index.final_pipeline": "nope"}}, "names nope, which is not there"),
    ],
)
def test_an_index_that_takes_no_document_puts_none_aside(
    opened: Opened, search: Server, made: dict[str, Any], said: str, anew: bool
) -> None:
    writer = opened()
    give(writer, row("a", 5, {"n": 5}))
    replaced(search, made)
    for _ in range(2):
        with pytest.raises(SinkError, match=said):
            give(opened() if anew else writer, row("b", 5, {"name": "b"}), row("c", 5, {"name": "c"}))
    replaced(search, {})
    assert give(writer, row("b", 5, {"name": "b"}), row("c", 5, {"name": "c"})) == 2


def test_an_alias_that_is_not_to_be_written_to(opened: Opened, search: Server) -> None:
    writer = opened()
    give(writer, row("a", 5, {"n": 5}))
    replaced(search, {}, "things-v2")
    aliased(search, "things-v2", is_write_index=False)
    with pytest.raises(SinkError, match="is_write_index: false"):
        give(writer, row("b", 5, {"n": 5}))


def test_fields_that_another_index_lacks_are_added(opened: Opened, search: Server) -> None:
    writer = opened()
    give(writer, row("a", 5, {"n": 5}))
    replaced(search, {"mappings": {"dynamic": "strict", "properties": {}}})
    with pytest.raises(Refused) as e:
        give(writer, row("b", 5, {"name": "b"}), row("c", 5, {"n": "no number"}))
    assert list(e.value.rows.values()) == [{1: e.value.rows["elasticsearch:things"][1]}]
    assert search.documents("things") == {"b": {"name": "b"}}


def test_a_block_and_a_closed_index_say_what_lifts_them(opened: Opened, search: Server) -> None:
    writer = opened()
    give(writer, row("a", 5, {"n": 5}))
    search.call("PUT", "things/_settings", {"index.blocks.read_only": True})
    with pytest.raises(SinkError, match=r"unset the block"):
        give(writer, row("b", 5, {"n": 5}))
    search.call("PUT", "things/_settings", {"index.blocks.read_only": None})
    search.call("POST", "things/_close")
    with pytest.raises(SinkError, match="open the index"):
        give(writer, row("b", 5, {"n": 5}))
    search.call("POST", "things/_open?wait_for_active_shards=1")
    assert give(writer, row("b", 5, {"n": 5})) == 1
