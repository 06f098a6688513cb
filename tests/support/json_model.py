"""Records by the standard library, to compare with: docs/records.md once more, apart from the code that it is of."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.model.types import Field, Type

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
SURROGATE = re.compile("[\ud800-\udfff]")
DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))?", re.ASCII)
SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class NoJson(ValueError):
    """The text is no JSON."""


class Wrong(ValueError):
    """A value is none of its type."""


@dataclass(frozen=True)
class Number:
    text: str

    @property
    def whole(self) -> bool:
        return not re.search("[.eE]", self.text)


class Pairs(list[tuple[str, Any]]):
    """An object as it is written."""

    def first(self, name: str) -> Any:
        return next((value for key, value in self if key == name), None)


def _refuse(constant: str) -> None:
    raise NoJson(constant)


READER = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=_refuse, object_pairs_hook=Pairs, strict=True
)


def read(text: str) -> Any:
    """The value of a JSON text, objects as Pairs, numbers as Number; NoJson."""
    try:
        found = READER.decode(text)
    except json.JSONDecodeError as e:
        raise NoJson(str(e)) from e
    if any(SURROGATE.search(s) for s in _strings(found)):
        raise NoJson("half a surrogate pair")
    return found


def _strings(value: Any) -> Iterable[str]:
    todo = [value]
    while todo:
        match todo.pop():
            case str() as s:
                yield s
            case Pairs() as pairs:
                for key, inner in pairs:
                    yield key
                    todo.append(inner)
            case list() as items:
                todo += items


def compact(value: Any) -> str:
    """The text of a value without space: reals as their double's shortest digits, integers as they stand."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return '"' + "".join(SHORT.get(c) or (f"\\u{ord(c):04X}" if c < " " else c) for c in value) + '"'
        case Number(text):
            if value.whole:
                return "0" if text == "-0" else text
            return text if math.isinf(float(text)) else shortest(float(text))
        case Pairs():
            return "{" + ",".join(f"{compact(k)}:{compact(v)}" for k, v in value) + "}"
    return "[" + ",".join(map(compact, value)) + "]"


def shortest(value: float) -> str:
    """As JavaScript writes it, but always with a point or an exponent."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    exponent += len(digits) - len(text)
    if not value:
        return "-0.0" if sign else "0.0"
    point = len(text) + exponent
    if -6 < point <= 21:
        if point <= 0:
            made = "0." + "0" * -point + text
        elif point >= len(text):
            made = text + "0" * exponent + ".0"
        else:
            made = f"{text[:point]}.{text[point:]}"
    else:
        made = text[0] + ("." + text[1:] if text[1:] else "") + f"e{point - 1}"
    return "-" * sign + made


def single(number: Number) -> float:
    """The FLOAT of a number: the one nearest to its double."""
    try:
        [found] = struct.unpack("f", struct.pack("f", float(number.text)))
    except OverflowError:
        return math.inf
    return float(found)


def value(found: Any, of: Type) -> Any:
    """A JSON value as a type; None for null; Wrong."""
    if found is None:
        return None
    match of.kind, found:
        case "string", str():
            return found
        case "string", Number(text) if not found.whole:
            return text if math.isinf(float(text)) else repr(float(text))
        case "string", _:
            return compact(found)
        case "boolean", bool():
            return found
        case ("tinyint" | "smallint" | "int" | "bigint") as kind, Number(text) if found.whole and len(text) < 25:
            n, limit = int(text), 2 ** (BITS[kind] - 1)
            if -limit <= n < limit:
                return n
        case "double" | "float", str() if found in NAMED:
            return NAMED[found]
        case ("double" | "float") as kind, Number(text):
            real = float(text) if kind == "double" else single(found)
            if math.isfinite(real):
                return 0.0 if text == "-0" else real
        case "date", str():
            return day(found)
        case "timestamp", str():
            return moment(found)
        case "array", list() if not isinstance(found, Pairs):
            assert of.element
            return [value(one, of.element) for one in found]
        case "map", Pairs() if len({key for key, _ in found}) == len(found):
            assert of.element
            return [(key, value(one, of.element)) for key, one in found]
        case "struct", Pairs():
            return struct_of(found, of.fields)
    raise Wrong(f"{found!r} is no {of}")


def struct_of(found: Pairs, fields: Sequence[Field]) -> dict[str, Any]:
    made = {f.name: value(found.first(f.name), f.type) for f in fields}
    if any(f.required and made[f.name] is None for f in fields):
        raise Wrong("a required field is missing")
    return made


def day(text: str) -> date:
    found = DAY.fullmatch(text)
    try:
        if found:
            return date(*(int(part) for part in found.groups()))
    except ValueError as e:
        raise Wrong(text) from e
    raise Wrong(text)


def moment(text: str) -> datetime:
    found = MOMENT.fullmatch(text)
    if not found:
        raise Wrong(text)
    *parts, fraction, sign, hours, minutes = found.groups()
    if hours and (int(hours) > 23 or int(minutes) > 59):
        raise Wrong(text)
    ahead = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    year, month, day, hour, minute, second = map(int, parts)
    try:
        local = datetime(year, month, day, hour, minute, second, int((fraction or "0")[:6].ljust(6, "0")), UTC)
        return local + ahead if sign == "-" else local - ahead
    except (ValueError, OverflowError) as e:
        raise Wrong(text) from e


def record(given: bytes | None, fields: Sequence[Field]) -> tuple[dict[str, Any] | None, str]:
    """The values of a record of a schema, and how the reason begins if it is none."""
    if given is None:
        return None, "the record has no value"
    try:
        text = given.decode()
    except UnicodeDecodeError:
        return None, "not valid UTF-8"
    try:
        found = read(text)
    except NoJson:
        return None, "not valid JSON: "
    if not isinstance(found, Pairs):
        return None, "not a JSON object: "
    made = {}
    for f in fields:
        if f.required and found.first(f.name) is None:
            return None, f"field {f.name} is missing or null"
        try:
            made[f.name] = value(found.first(f.name), f.type)
        except Wrong:
            return None, f"field {f.name} is no {f.type}: "
    return made, ""


def is_json(given: bytes) -> bool:
    try:
        read(given.decode())
    except (NoJson, UnicodeDecodeError):
        return False
    return True
