"""Texts that are nearly JSON records of a schema, made from a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence

from penstock.model.types import Field, Type

NINES = "9" * 400
NUMBERS = [
    "0", "-0", "-0.0", "0.0", "00", "01", "-", "+1", "1.", ".5", "1.50", "-12.25", "1e5", "1E+05", "1e-400", "-1e-400",
    "1e400", "-1e400", "1e999", "1E400", "1.5E+999", "1e-7", "5E-9", "1e22", "1e21", "1e20", "-1e21", "123e-20",
    "127", "128", "-128", "-129", "32767", "32768", "-32769", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9007199254740991", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "123456789012345678",
    "1234567890123456789", "12345678901234567890", "123456789012345678901234567890", NINES, f"-{NINES}", f"0.{NINES}",
    f"{NINES}.5", f"{NINES}e-400", "1" + "0" * 400 + "e-400", "0.1000000000000000055", "0.123456789012345678901",
    "9007199254740993.0", "16777217", "16777217.0", "9007199791611905", "1.00000005960464477539062500001",
    "3.4028235e38",
    "3.4028235677973366e38", "3.5e38", "340282346638528859811704183484516925440", "1.401298464324817e-45", "7e-46",
    "1e-50",
    "1e308", "1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "4.9e-324", "5e-324",
    "2e-324", "3e-324", "2.2250738585072011e-308", "2.2250738585072014e-308", "1_0", "1d", "1f", "0x1", "0b1", "1e",
    "1e+", "--1", "-01", "1 2", "１", "٣", "NaN", "nan", "-NaN", "Infinity", "-Infinity", "inf", "-inf", "INF",
    "infinity", "undefined", "1e5.5", "1,5", "1.0", "1e2", "100.0", "2.5E+3", "0e5", "-0e5", "0.1e1", "100000e-5",
    "1700000000000", "-1", " 1", "1 ", "999999999", "1000000000", "-62135596800000", "-62135596800001",
    "253402300799999", "253402300800000",
]  # fmt: skip
STRINGS = [
    '""', '"a"', '"a\\"b"', '"\\u0041"', '"é"', '"日本"', '"a\\\\b"', '"tab\there"', '"line\nbreak"', '"}"', '"a,b: c"',
    '"a""b"', '"', "'a'", '"\u007f"', '" "', '"\\/"', '"\\b\\f\\n\\r\\t"', '"\\u0000"', '"x\\u0000y"', '"\\u001f"',
    '"\\ud83d\\ude00"', '"😀"', '"\\ud800"', '"\\udc00"', '"\\udc00\\ud800"', '"\\ud800\\u0041"', '"\\uD83D"',
    '"\\ud83d\\ud83d\\ude00"', '"\\u00g0"', '"\\u00"', '"\\x41"', '"\\a"', '"\\"', '"\\\\"', '"\\\\\\"', '"\x00"',
    '"\x01"', '"\x1f"', '"\u2028"', '"\uffff"', '"\ufeff"', '"NaN"', '"nan"', '"Infinity"', '"-Infinity"',
    '"+Infinity"',
    '"\\u004eaN"', '"inf"', '",}"', '",]"', '"[NaN"', '": NaN"', '",\\"}"', '"a,\\n}"', '"\\\\",}', '"1.5"', '"1"',
    '"true"',
    '"null"', '"-1"', '"{}"', '"[]"',
]  # fmt: skip
TIMES = [
    '"2026-01-01T00:00:00Z"', '"2026-01-01 00:00:00"', '"2026-01-01T00:00:00"', '"2026-01-01T00:00:00.5Z"',
    '"2026-01-01T00:00:00.123456Z"', '"2026-01-01T00:00:00.1234567Z"', '"2026-01-01T00:00:00.999999999999Z"',
    '"2026-01-01T00:00:00.Z"', '"2026-01-01T00:00:00,5Z"', '"2026-01-01T24:00:00Z"', '"2026-01-01T23:59:60Z"',
    '"2026-01-01T23:60:00Z"', '"2026-02-29T00:00:00Z"', '"2024-02-29T00:00:00Z"', '"0000-01-01T00:00:00Z"',
    '"0001-01-01T00:00:00Z"', '"0001-01-01T00:00:00+00:01"', '"9999-12-31T23:59:59.999999Z"',
    '"9999-12-31T23:59:59-00:01"', '"1582-10-10T00:00:00Z"', '"1969-12-31T23:59:59.999999Z"',
    '"2026-01-01T00:00:00+14:00"',
    '"2026-01-01T00:00:00+23:59"', '"2026-01-01T00:00:00+24:00"', '"2026-01-01T00:00:00+01:60"',
    '"2026-01-01T00:00:00-00:00"', '"2026-01-01t00:00:00z"', '"2026-01-01T00:00:00+0100"', '"2026-01-01T00:00:00 Z"',
    '" 2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00Z "', '"2026-1-1T00:00:00Z"', '"20260101T000000Z"',
    '"2026-01-01T00:00Z"', '"2026-01-01"', '"0000-01-01"', '"0001-01-01"', '"9999-12-31"', '"10000-01-01"',
    '"2026-02-29"',
    '"2024-02-29"', '"1900-02-29"', '"2026-13-01"', '"2026-00-10"', '"2026-01-00"', '"2026-01-32"', '"-2026-01-01"',
    '"epoch"', '"infinity"', '"now"', '"today"', '"٢٠٢٦-01-01"', '"2026\\u002d01-01"', "1767225600",
    '"2026-01-01T00:00:00Z\\n"', '"2026-01-01 (BC)"', '"2026-01-01T00:00:00 UTC"',
]  # fmt: skip
OTHERS = [
    "null", "true", "false", "TRUE", "tru", "nulls", "None", "[]", "{}", "[1]", "[1,]", "[,1]", "[NaN]", "[ nan ]",
    "[1,NaN]", "[1 , Infinity]", '{"x":1,}', '{"x":1 , }', '{"x":NaN}',
    '{"x":[1,2.50,-0,1e22,"\\u00e9",null,true]}', "",
    " ", "[1,2", '{"x"}', '{"x":}', "{1:2}", "[[]]", "[null]", "[[1],[2]]", '[{"x":1}]', '{"":1}', '{"x":{"y":[{}]}}',
    '[1,"x",null]', "[1.5,2]", "[1.5,1e400]", "[9223372036854775807,-9223372036854775808]", "[9223372036854775808]",
    "[2147483648,1]", "[-0,0.0]", "[1e3]", "[0.1,-7]", f"[{NINES}]", "[1,-0]", "[1,null,2]", '["NaN",1]', "[null,1.5]",
    "/*c*/1", "1//c", '{"x":1,"x":2}', '{"x":1,"\\u0078":2}', '{"a":1,"b":null}', '{"a":1,"a":"q"}',
]  # fmt: skip
KEYS = [
    "",
    "0",
    "1",
    "-",
    "a/b",
    "~",
    "~0",
    "~1",
    "a~b",
    'q"q',
    "a.b",
    "*",
    "$",
    "#",
    "é",
    "日本",
    "😀",
    "\x00",
    "A",
    "a b",
]
SPACES = ["", "", "", " ", "  ", "\n", "\t", "\r\n"]
FOREIGN_SPACES = ["\f", "\x0b", "\u00a0", "\u2028", "\ufeff", "\x00", "\u3000", "/**/"]
BYTES = [
    b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\x00", b"\x7f",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xfe\xff", "😀 ﷽ é".encode(),
]  # fmt: skip
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.\w]+|\s+|.', re.DOTALL)
# Commas and colons.
LAYOUTS = [(",", ":"), (", ", ": "), ("\n ,", " : ")]
CHARACTERS = '{}[]":,.0123456789aeE-+ \\\x00é\n\tntfNI/u'


SPECIAL = [*NUMBERS, *STRINGS, *TIMES, *OTHERS]


def around(plain: str) -> Iterator[str]:
    """Texts beside that of an object: laid out otherwise, cut, doubled, with a comma or a quote too many."""
    yield from (
        plain[:-1],
        plain[1:],
        plain[:-1] + ",}",
        "{," + plain[1:],
        "{ " + plain[1:],
        "{" + plain,
        plain + plain,
    )
    yield from (
        plain[:-1] + ',"more":1}',
        plain[:-1] + ',"more":[1,]}',
        plain.replace(":", "::"),
        plain.replace(",", ",,"),
    )
    yield from (
        plain.replace('"', "'"),
        plain.replace('"', ""),
        plain.replace('":', ' ":', 1),
        plain.replace('"', '""'),
    )
    for comma in (", ", ",  ", " ,\n", ",\u00a0", ",\f", " ", ";"):
        yield plain.replace(",", comma)
    for colon in (": ", "\n:\t", "=", ":\u00a0"):
        yield plain.replace(":", colon)
    for end in ("", " ", "\n", "\r\n", "x", "1", ",", "]", "}", "\ufeff", *FOREIGN_SPACES):
        yield from (plain + end, end + plain, end + plain + end)
    yield json.dumps(json.loads(plain), indent=2)
    yield json.dumps(dict(reversed(json.loads(plain).items())))


class Texts:
    """Texts around one schema; the same seed gives the same texts."""

    def __init__(self, fields: Sequence[Field], seed: int) -> None:
        self._fields, self._chance = fields, random.Random(seed)

    def __call__(self, n: int) -> Iterator[bytes]:
        changes = (self._bytes, self._characters, self._tokens, self._ends, self._nested, bytes)
        for _ in range(n):
            text = self.record().encode()
            if self._chance.random() < 0.6:
                for _ in range(self._chance.choice([1, 1, 1, 2, 4])):
                    text = self._chance.choice(changes)(text)
            yield text

    def hard(self, *, every_layout: bool = True) -> Iterator[bytes]:
        """Those known to be hard: every special text as a whole and as each of the fields, in each layout or in one."""
        yield from (text.encode() for text in SPECIAL)
        plain = {f.name: self._value(f.type, 0) for f in self._fields}
        whole = "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in plain.items()) + "}"
        yield from (text.encode() for text in around(whole))
        for name in plain:
            for number, special in enumerate(SPECIAL):
                pairs = list({**plain, name: special}.items())
                for comma, colon in LAYOUTS if every_layout else [LAYOUTS[number % len(LAYOUTS)]]:
                    yield ("{" + comma.join(f"{json.dumps(n)}{colon}{v}" for n, v in pairs) + "}").encode()
                    self._chance.shuffle(pairs)
        for odd in BYTES:
            for at in (b":", b'"', b"{", b"}"):
                yield whole.encode().replace(at, at + odd, 1)
                yield whole.encode().replace(at, odd + at, 1)

    def record(self) -> str:
        """A JSON object that has most of the fields, most of them of their types."""
        chance = self._chance
        odd = chance.choice([0.0, 0.0, 0.05, 0.2, 1.0])
        pairs = [(f.name, self._value(f.type, odd)) for f in self._fields if chance.random() > 0.03]
        if chance.random() < 0.3:
            names = [*KEYS, *(f.name for f in self._fields), *(f.name.upper() for f in self._fields)]
            pairs += [(chance.choice(names), self._any()) for _ in range(chance.choice([1, 1, 2, 5]))]
        if chance.random() < 0.5:
            chance.shuffle(pairs)
        return self._object(pairs)

    def _object(self, pairs: list[tuple[str, str]]) -> str:
        spaces = SPACES if self._chance.random() < 0.3 else [""]

        def s() -> str:
            return self._chance.choice(spaces)

        inner = f"{s()},{s()}".join(f"{self._string(k)}{s()}:{s()}{v}" for k, v in pairs)
        return f"{s()}{{{s()}{inner}{s()}}}{s()}"

    def _string(self, text: str) -> str:
        """A JSON string, its characters escaped now and then."""
        if self._chance.random() < 0.9:
            return json.dumps(text, ensure_ascii=self._chance.random() < 0.5)
        return (
            json.dumps("")[:1]
            + "".join(json.dumps(c)[1:-1] if ord(c) > 127 else f"\\u{ord(c):04x}" for c in text)
            + '"'
        )

    def _any(self) -> str:
        return self._chance.choice(self._chance.choice([NUMBERS, STRINGS, TIMES, OTHERS]))

    def _value(self, of: Type, odd: float) -> str:
        """The text of a value of a type; or, by the chance `odd`, of anything."""
        chance = self._chance
        if chance.random() < odd:
            return self._any()
        if chance.random() < 0.03:
            return "null"
        match of.kind:
            case "string":
                return self._string(
                    chance.choice(["", "prod", "a b", "é", 'x"y', "tab\t", "😀", "NaN", ",}", "a\\b", "\x00"])
                )
            case "boolean":
                return chance.choice(["true", "false"])
            case "double" | "float":
                return chance.choice([repr(chance.gauss(100, 30)), repr(chance.gauss(0, 10**9)), "7", "-1e3", '"NaN"'])
            case "date":
                return f'"{chance.randrange(1, 9999):04}-0{chance.randrange(1, 10)}-1{chance.randrange(10)}"'
            case "timestamp":
                zone = chance.choice(["Z", "", "+02:00", "-11:30"])
                month, hour, fraction = chance.randrange(1, 10), chance.randrange(10), chance.randrange(10**6)
                return f'"2026-0{month}-11T0{hour}:30:59.{fraction}{zone}"'
            case "array":
                assert of.element
                items = [self._value(of.element, odd / 4) for _ in range(chance.choice([0, 1, 2, 3, 9]))]
                return "[" + ",".join(items) + "]"
            case "map":
                assert of.element
                names = [chance.choice([*KEYS, "k", "l", "m"]) for _ in range(chance.choice([0, 1, 2, 3]))]
                return self._object([(name, self._value(of.element, odd / 4)) for name in names])
            case "struct":
                return self._object(
                    [(f.name, self._value(f.type, odd / 4)) for f in of.fields if chance.random() > 0.05]
                )
        return str(chance.choice([0, 7, -1, 100, 1_700_000_000_000 if of.kind == "bigint" else 99]))

    def _bytes(self, text: bytes) -> bytes:
        at = self._chance.randrange(len(text) + 1)
        other = self._chance.choice([*BYTES, bytes([self._chance.randrange(256)])])
        return text[:at] + other + text[at + self._chance.choice([0, 0, 1, 2]) :]

    def _characters(self, text: bytes) -> bytes:
        at = self._chance.randrange(len(text) + 1)
        return text[:at] + self._chance.choice(CHARACTERS).encode() + text[at + self._chance.choice([0, 1, 1]) :]

    def _tokens(self, text: bytes) -> bytes:
        tokens = TOKEN.findall(text.decode(errors="surrogateescape")) or [""]
        i, j = (self._chance.randrange(len(tokens)) for _ in range(2))
        match self._chance.randrange(5):
            case 0:
                del tokens[i]
            case 1:
                tokens.insert(i, tokens[j])
            case 2:
                tokens[i], tokens[j] = tokens[j], tokens[i]
            case 3:
                tokens[i] = self._any()
            case _:
                tokens.insert(i, self._chance.choice([",", ",", "[", "]", "{", "}", *FOREIGN_SPACES, *SPACES]))
        return "".join(tokens).encode(errors="surrogateescape")

    def _ends(self, text: bytes) -> bytes:
        other = self.record().encode()
        cut = self._chance.randrange(len(text) + 1)
        rest = self._chance.choice(["]", "}", "1", ",", "x", "\x00", *FOREIGN_SPACES]).encode()
        return self._chance.choice(
            [
                text + other,
                text + b"\n" + other,
                text + rest,
                rest + text,
                text[:cut],
                text[cut:],
                b"[" + text + b"]",
                b"",
            ]
        )

    def _nested(self, text: bytes) -> bytes:
        """A value deep within arrays or objects, as a field or as the whole."""
        depth = self._chance.choice([1, 10, 100, 300])
        opened, closed = self._chance.choice([("[", "]"), ('{"a":', "}")])
        deep = opened * depth + self._any() + closed * (depth + self._chance.choice([0, 0, 0, 1, -1]))
        if self._chance.random() < 0.2:
            return deep.encode()
        field = self._string(self._chance.choice([f.name for f in self._fields]))
        return text.replace(b"{", f"{{{field}:{deep},".encode(), 1)
