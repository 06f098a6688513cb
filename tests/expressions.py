"""Expressions of each engine, as people write them: what is sent must be what was written."""

from __future__ import annotations

# Columns of the table `expressions`: id, changed, s and u (text), n (whole), m (decimal), f (double), d (date), t (a
# time without zone), j (JSON as text), b (bytes), z (NULL). `other` has id and title.
EVERYWHERE = r"""
s = 'x'
s <> 'x'
s != 'x'
NOT s = 'x'
s IS NULL
z IS NOT NULL
s LIKE 'a%'
s NOT LIKE '%\_%'
s LIKE 'a!%' ESCAPE '!'
n + 1
n - -1
-n
- - n
+n
n * 2 + 1
n / 2
m / 3
n % 7
n & 6
n | 8
~n
n << 2
n >> 1
(n + 1) * 2
n BETWEEN 1 AND 5
n NOT BETWEEN 1 AND 5
n IN (1, 2, 3)
n NOT IN (1, NULL)
CASE WHEN n > 1 THEN 'a' ELSE 'b' END
CASE n WHEN 1 THEN 'one' WHEN 2 THEN 'two' END
CASE WHEN z IS NULL THEN 1.50 END
COALESCE(z, s, 'none')
NULLIF(n, 1)
ABS(-n)
ROUND(m, 1)
UPPER(s)
LOWER(s)
LENGTH(u)
TRIM(s)
LTRIM(s)
RTRIM(s)
REPLACE(s, 'a', 'b')
CAST(n AS CHAR(20))
CAST(s AS CHAR(3))
CAST(m AS DECIMAL(20, 4))
'a''b'
''
'%'
'%s %(x)s %%'
'?'
':p0 ::x :low'
'penstock'
'-- no comment'
'/* none */'
'#'
';'
'grün 🐟'
'"'
'`'
'$1 $$ {x}'
"u"
1
1.0
1.50
1e3
1.5E-3
.5
12345678901234567890123
0.1 + 0.2
NULL
n IS NULL OR n > 1 AND n < 9
NOT (n > 1 AND n < 9)
(SELECT 1)
(SELECT o.title FROM other AS o WHERE o.id = n)
EXISTS (SELECT 1 FROM other WHERE other.id = n)
n IN (SELECT id FROM other)
s /* in between */
s -- behind it
"""

MYSQL = r"""
s REGEXP '^a'
s NOT REGEXP '^a'
s RLIKE 'b$'
s REGEXP BINARY 'A'
REGEXP_REPLACE(s, '[aeiou]', '_')
REGEXP_SUBSTR(s, 'b+')
REGEXP_INSTR(s, 'b')
TO_CHAR(t, 'YYYY-MM-DD')
TO_CHAR(t, 'YYYY/MM/DD HH24:MI:SS')
TO_CHAR(t)
0x41
0x4142 + 0
x'41'
X'4142'
b'1000001'
0b1000001
b'101' + 0
_utf8mb4'x'
_latin1'x'
_binary'x'
N'y'
CHAR(65, 66)
CHAR(65, 66 USING utf8mb4)
CHAR(0xC3A9 USING utf8mb4)
CHR(65)
ORD(s)
ASCII(s)
HEX(s)
HEX(n)
UNHEX('4142')
BIN(n)
OCT(n)
CONV('ff', 16, 10)
CONCAT(s, n, u)
CONCAT(s, z)
CONCAT_WS('-', s, z, n)
'a' 'b'
s || 'x'
s && n
n XOR 1
!n
n <=> NULL
n DIV 2
n MOD 3
7 DIV 2
5--3
n = 1 = 1
'it\'s'
'a\\b'
'tab\there'
'line\nbreak'
'\%'
"double ""quoted"" 'text'"
"it\"s"
s COLLATE utf8mb4_bin
s COLLATE utf8mb4_bin = 'A'
BINARY s = 'A'
CAST(s AS BINARY)
CAST('12' AS UNSIGNED)
CAST(n AS SIGNED)
CAST(m AS DOUBLE)
CAST(f AS FLOAT) > 0
CAST(t AS DATE)
CAST(t AS TIME)
CAST(d AS DATETIME)
CAST('2026-01-01' AS DATETIME(3))
CONVERT(s, CHAR(2))
CONVERT(s USING latin1)
CONVERT(n, DECIMAL(10, 2))
DATE '2026-02-03'
TIME '01:02:03'
TIMESTAMP '2026-02-03 04:05:06.789'
t + INTERVAL 1 DAY
t - INTERVAL 90 MINUTE
INTERVAL 1 MONTH + d
t + INTERVAL '1:30' HOUR_MINUTE
DATE_ADD(t, INTERVAL 1 WEEK)
DATE_SUB(t, INTERVAL 1 QUARTER)
DATE_ADD(t, INTERVAL '1 2' DAY_HOUR)
ADDDATE(d, 5)
SUBDATE(d, INTERVAL 2 DAY)
ADDTIME(t, '01:00:00')
SUBTIME(t, '01:00:00')
DATE_FORMAT(t, '%Y-%m-%d %H:%i:%s.%f')
DATE_FORMAT(t, '%W %M %e %y %j %U')
TIME_FORMAT('10:20:30', '%k %i')
STR_TO_DATE('03/02/2026', '%d/%m/%Y')
STR_TO_DATE('2026-02-03 10', '%Y-%m-%d %H')
DATE(t)
TIME(t)
TIMESTAMP(d)
TIMESTAMP(d, '10:00:00')
YEAR(t)
MONTH(t)
DAY(t)
DAYOFWEEK(t)
DAYOFYEAR(t)
DAYNAME(t)
MONTHNAME(t)
WEEK(t)
WEEK(t, 3)
WEEKDAY(t)
YEARWEEK(t)
QUARTER(t)
HOUR(t)
MINUTE(t)
SECOND(t)
MICROSECOND(t)
LAST_DAY(t)
TO_DAYS(t)
TO_SECONDS(t)
FROM_DAYS(738000)
FROM_UNIXTIME(0)
FROM_UNIXTIME(n, '%Y')
UNIX_TIMESTAMP(t)
EXTRACT(YEAR FROM t)
EXTRACT(DAY_HOUR FROM t)
EXTRACT(YEAR_MONTH FROM t)
DATEDIFF(t, d)
TIMEDIFF(t, t)
TIMESTAMPDIFF(MINUTE, d, t)
TIMESTAMPADD(SECOND, 5, t)
PERIOD_ADD(202601, 2)
PERIOD_DIFF(202603, 202601)
MAKEDATE(2026, 32)
MAKETIME(1, 2, 3)
SEC_TO_TIME(3661)
TIME_TO_SEC('01:00:01')
CONVERT_TZ(t, '+00:00', '+02:00')
SUBSTRING(s, 2)
SUBSTRING(s, 2, 1)
SUBSTRING(s FROM 2 FOR 1)
SUBSTR(s, -2)
SUBSTRING_INDEX('a.b.c', '.', -2)
MID(s, 1, 2)
LEFT(s, 2)
RIGHT(s, 2)
LPAD(s, 8, '*')
RPAD(s, 8, '*')
REPEAT(s, 2)
REVERSE(s)
SPACE(3)
INSERT(s, 1, 1, 'zz')
INSTR(s, 'b')
LOCATE('b', s)
LOCATE('b', s, 2)
POSITION('b' IN s)
TRIM(BOTH 'a' FROM s)
TRIM(LEADING 'a' FROM s)
TRIM(TRAILING FROM s)
ELT(2, 'a', 'b')
FIELD(s, 'a', 'abc')
FIND_IN_SET('b', 'a,b,c')
FORMAT(n * 1000, 2)
FORMAT(12345.678, 1, 'de_DE')
STRCMP(s, 'b')
SOUNDEX(s)
s SOUNDS LIKE 'abc'
QUOTE(s)
CHAR_LENGTH(u)
OCTET_LENGTH(u)
BIT_LENGTH(u)
UCASE(s)
LCASE(s)
TO_BASE64(s)
FROM_BASE64('YWI=')
MD5(s)
SHA1(s)
SHA2(s, 256)
CRC32(s)
AES_ENCRYPT('a', 'k')
COMPRESS('') = ''
INET_ATON('10.0.0.1')
INET_NTOA(167772161)
INET6_NTOA(INET6_ATON('::1'))
IF(n > 1, 'y', 'n')
IFNULL(z, 0)
ISNULL(z)
NVL(z, 'n')
NVL2(z, 1, 2)
GREATEST(n, 2, 3)
LEAST(n, 2)
INTERVAL(n, 1, 5, 10)
CEIL(m)
CEILING(m)
FLOOR(m)
TRUNCATE(m, 1)
ROUND(m)
SIGN(n)
SQRT(4)
POW(n, 2)
POWER(2, 10)
EXP(0)
LN(2.5)
LOG(2, 8)
LOG(10)
LOG2(8)
LOG10(100)
MOD(n, 3)
PI()
SIN(0)
ATAN(1, 2)
ATAN2(1, 2)
RADIANS(180)
COT(1)
BIT_COUNT(n)
n ^ 5
JSON_EXTRACT(j, '$.a')
JSON_VALUE(j, '$.a')
JSON_QUERY(j, '$.b')
JSON_UNQUOTE(JSON_EXTRACT(j, '$.c'))
JSON_OBJECT('a', n, 'b', s)
JSON_ARRAY(n, s, NULL)
JSON_CONTAINS(j, '1', '$.a')
JSON_LENGTH(j)
JSON_KEYS(j)
JSON_TYPE(j)
JSON_VALID(j)
JSON_SET(j, '$.a', 2)
JSON_REMOVE(j, '$.a')
JSON_SEARCH(j, 'one', 'x')
JSON_EXISTS(j, '$.a')
JSON_COMPACT(j)
JSON_QUOTE(s)
s LIKE BINARY 'A%'
(n, n) = (1, 1)
n NOT IN (SELECT id FROM other WHERE title IS NOT NULL)
n = ANY (SELECT id FROM other)
n > ALL (SELECT id FROM other WHERE id < 3)
TRUE
FALSE
n IS TRUE
n IS NOT FALSE
z IS UNKNOWN
VERSION() = ''
DATABASE()
CAST(j AS CHAR)
`s`
expressions.`u`
demo.expressions.n
COLLATION(s)
CHARSET(s)
COERCIBILITY(s)
EXPORT_SET(n, 'Y', 'N', ',', 4)
MAKE_SET(3, 'a', 'b')
UPDATEXML('<a>b</a>', '/a', 'c')
EXTRACTVALUE('<a>b</a>', '/a')
NATURAL_SORT_KEY('a10')
SFORMAT('{}-{}', s, n)
"""

POSTGRES = r"""
s ~ '^a'
s ~* '^A'
s !~ 'x'
s SIMILAR TO 'a%'
s ILIKE 'A%'
s ~~ 'a%'
regexp_replace(s, '[aeiou]', '_', 'g')
regexp_match(s, 'b+')
(regexp_match(s, 'b'))[1]
to_char(t, 'YYYY-MM-DD')
to_char(t, 'HH24:MI:SS.US TZ')
to_char(t, 'FMDay, DD "of" Month')
to_char(m, 'FM999G990D00')
to_char(n, '0000')
to_date('03 02 2026', 'DD MM YYYY')
to_timestamp('2026-02-03', 'YYYY-MM-DD')
to_timestamp(0)
to_number('1,234', '9G999')
date_trunc('month', t)
date_part('epoch', t)
extract(epoch from t)
extract(isodow from t)
age(t, t)
t + interval '1 day'
t - '90 minutes'::interval
interval '1 year 2 months'
t::date
t::timestamptz
t AT TIME ZONE 'Europe/Berlin'
(t AT TIME ZONE 'UTC') AT TIME ZONE 'Asia/Kolkata'
make_date(2026, 2, 3)
make_interval(days => 3)
date '2026-02-03'
timestamp '2026-02-03 04:05:06'
timestamptz '2026-02-03 04:05:06+02'
d + 3
d - date '2026-01-01'
(d, d) OVERLAPS (d, d)
justify_days(interval '35 days')
n::text
n::numeric(10,2)
'12'::int + 1
CAST(n AS bigint)
m::float8
s::varchar(2)
n::bit(8)
true::int
'{1,2,3}'::int[]
ARRAY[n, 2, 3]
(ARRAY[1,2,3])[2]
(ARRAY[1,2,3])[1:2]
n = ANY (ARRAY[1, 2])
n = ALL ('{1}'::int[])
ARRAY[1,2] || 3
ARRAY[1,2] @> ARRAY[1]
array_length(ARRAY[1,2], 1)
array_to_string(ARRAY['a','b'], ',')
string_to_array('a,b', ',')
cardinality(ARRAY[1,2])
array_position(ARRAY['a','b'], 'b')
j::json
j::jsonb
j::jsonb -> 'a'
j::jsonb ->> 'c'
j::jsonb #> '{b,0}'
j::jsonb #>> '{b,0}'
j::jsonb @> '{"a": 1}'
j::jsonb ? 'a'
j::jsonb ?| array['a','x']
j::jsonb ?& array['a','c']
j::jsonb - 'a'
j::jsonb || '{"x": 1}'::jsonb
j::jsonb @? '$.a'
j::jsonb @@ '$.a == 1'
jsonb_build_object('a', n, 'b', s)
jsonb_typeof(j::jsonb)
jsonb_set(j::jsonb, '{a}', '2')
jsonb_path_query_first(j::jsonb, '$.b[0]')
jsonb_array_length('[1,2]'::jsonb)
to_jsonb(s)
row_to_json(expressions)
s || 'x' || n
concat(s, z, n)
concat_ws('-', s, z, n)
format('%s-%I-%L', s, 'a b', 'c''d')
E'it\'s'
E'tab\there'
E'\\'
'a\b'
U&'\0041'
$$it's$$
$tag$a $$ b$tag$
B'101'
X'1F'
'\x4142'::bytea
b
encode(b, 'hex')
decode('4142', 'hex')
md5(s)
sha256(b)
chr(65)
ascii(s)
substring(s from 2 for 1)
substring(s, 2)
substring(s from 'b+')
substr(s, 2)
position('b' in s)
strpos(s, 'b')
overlay(s placing 'zz' from 1 for 1)
trim(both 'a' from s)
btrim(s, 'a')
split_part('a.b.c', '.', 2)
left(s, -1)
right(s, 2)
lpad(s, 8, '*')
repeat(s, 2)
reverse(s)
translate(s, 'ab', 'xy')
initcap(s)
starts_with(s, 'a')
s ^@ 'a'
char_length(u)
octet_length(u)
quote_literal(s)
quote_ident('a b')
normalize(u)
s COLLATE "C"
s COLLATE "C" < 'B'
n ^ 2
|/ 4
||/ 27
n # 5
7 / 2
7 % -3
div(7, 2)
mod(7, 2)
trunc(m, 1)
ceil(m)
width_bucket(5, 0, 10, 5)
greatest(n, 2)
least(n, 2)
round(m)
log(100)
ln(2.5)
power(2, 10)
pi()
gcd(12, 18)
num_nulls(z, n)
n IS DISTINCT FROM 1
n IS NOT DISTINCT FROM NULL
(n > 1) IS TRUE
(n > 1) IS NOT UNKNOWN
TRUE
'yes'::boolean
n BETWEEN SYMMETRIC 5 AND 1
ROW(n, s)::text
(n, s) = (1, 'x')
expressions.s
public.expressions.n
"s"
int4range(1, 5) @> 3
'10.0.0.1/8'::inet << '10.0.0.0/7'::inet
host('10.0.0.1/8'::inet)
'[1,2]'::jsonb <@ '[1,2,3]'::jsonb
point(1,2) <-> point(3,4)
s OPERATOR(pg_catalog.||) 'x'
pg_catalog.upper(s)
to_tsvector('simple', s) @@ to_tsquery('simple', 'abc')
CASE WHEN s ~ 'a' THEN 'x'::text END
coalesce(z, 'n'::text)
0x1F
0b101
"""

SQLITE = r"""
s || 'x' || n
s GLOB 'a*'
s NOT GLOB '[b-z]*'
s IS 'x'
s IS NOT 'x'
s IS DISTINCT FROM 'x'
s = 'ABC' COLLATE NOCASE
s COLLATE RTRIM
x'4142'
X'00ff'
0x1F
n == 1
n -> '$'
j -> '$.a'
j ->> '$.c'
json_extract(j, '$.a')
json_object('a', n, 'b', s)
json_array(n, s, NULL)
json_type(j)
json_valid(j)
json_set(j, '$.a', 2)
json(j)
date(t)
time(t)
datetime(t, '+1 day')
datetime(t, 'start of month', '-1 day')
julianday(t)
strftime('%Y-%m-%d %H:%M:%f', t)
strftime('%s', t)
unixepoch(t)
date('2026-02-03', 'weekday 1')
char(65, 66)
unicode(s)
hex(s)
quote(s)
printf('%05d-%s', n, s)
format('%.2f', f)
substr(s, 2)
substr(s, -2, 1)
substring(s, 1, 2)
instr(s, 'b')
trim(s, 'a')
ltrim(s, 'a')
iif(n > 1, 'y', 'n')
ifnull(z, 0)
typeof(n)
typeof(m)
max(n, 2)
min(n, 2)
sign(n)
round(m)
likely(n)
zeroblob(2)
CAST(s AS INTEGER)
CAST(n AS TEXT)
CAST(s AS BLOB)
CAST('1.5' AS REAL)
CAST(m AS NUMERIC)
n IS NOT NULL
z ISNULL
n NOTNULL
z NOT NULL
[s]
"s"
`s`
expressions.s
main.expressions.n
rowid
(n, s) = (1, 'x')
n IN (1, 2)
n & 3 | 4
CASE WHEN s GLOB 'a*' THEN 1 END
'a' < 1
TRUE
NOT n
"""


def of(dialect: str) -> list[str]:
    """All expressions of an engine."""
    own = {"mysql": MYSQL, "postgres": POSTGRES, "sqlite": SQLITE}[dialect]
    return [line for line in (EVERYWHERE + own).splitlines() if line.strip()]
