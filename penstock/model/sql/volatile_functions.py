"""What says another thing each time it is asked, or in each session: by name, as each engine's manual has it.

Gone through: the functions of MariaDB 11.4, MySQL 9, PostgreSQL 17, SQLite 3, Spark 4.2 and DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot.tokenizer_core import Token, TokenType

# By engine; "" is for all of them.
FUNCTIONS = {
    "": """
        NOW CURRENT_TIMESTAMP CURRENT_DATE CURRENT_TIME LOCALTIME LOCALTIMESTAMP UUID RAND RANDOM CURRENT_USER
        SESSION_USER SYSTEM_USER USER CURRENT_ROLE NEXTVAL SETVAL LASTVAL UNIX_TIMESTAMP UNIXEPOCH AGE
        """,
    "mysql": """
        SYSDATE CURDATE CURTIME UTC_TIMESTAMP UTC_DATE UTC_TIME UUID_SHORT UUID_V4 UUID_V7 SYS_GUID RANDOM_BYTES
        ENCRYPT SLEEP BENCHMARK CONNECTION_ID LAST_INSERT_ID LAST_VALUE ROW_COUNT FOUND_ROWS ROWNUM LOAD_FILE
        GET_LOCK RELEASE_LOCK RELEASE_ALL_LOCKS IS_FREE_LOCK IS_USED_LOCK MASTER_POS_WAIT MASTER_GTID_WAIT
        SOURCE_POS_WAIT WAIT_FOR_EXECUTED_GTID_SET WSREP_LAST_SEEN_GTID WSREP_LAST_WRITTEN_GTID
        WSREP_SYNC_WAIT_UPTO_GTID SPIDER_DIRECT_SQL SPIDER_BG_DIRECT_SQL PS_CURRENT_THREAD_ID PS_THREAD_ID
        GEN_RANGE GEN_RND_CANADA_SIN GEN_RND_EMAIL GEN_RND_IBAN GEN_RND_PAN GEN_RND_SSN GEN_RND_UK_NIN
        GEN_RND_US_PHONE GEN_RND_UUID ASYMMETRIC_ENCRYPT ASYMMETRIC_SIGN CREATE_ASYMMETRIC_PRIV_KEY
        CREATE_DH_PARAMETERS
        """,
    "postgres": """
        CLOCK_TIMESTAMP STATEMENT_TIMESTAMP TRANSACTION_TIMESTAMP TIMEOFDAY RANDOM_NORMAL GEN_RANDOM_UUID
        GEN_RANDOM_BYTES GEN_SALT UUID_GENERATE_V1 UUID_GENERATE_V1MC UUID_GENERATE_V4 UUIDV4 UUIDV7 CURRVAL SETSEED
        PG_SLEEP PG_SLEEP_FOR PG_SLEEP_UNTIL TXID_CURRENT TXID_CURRENT_IF_ASSIGNED TXID_CURRENT_SNAPSHOT
        PG_CURRENT_XACT_ID PG_CURRENT_XACT_ID_IF_ASSIGNED PG_CURRENT_SNAPSHOT PG_BACKEND_PID INET_CLIENT_ADDR
        INET_CLIENT_PORT INET_SERVER_ADDR INET_SERVER_PORT CURRENT_QUERY PG_CURRENT_LOGFILE
        PG_POSTMASTER_START_TIME PG_CONF_LOAD_TIME PG_IS_IN_RECOVERY PG_CURRENT_WAL_LSN PG_CURRENT_WAL_INSERT_LSN
        PG_CURRENT_WAL_FLUSH_LSN PG_LAST_WAL_RECEIVE_LSN PG_LAST_WAL_REPLAY_LSN PG_LAST_XACT_REPLAY_TIMESTAMP
        PG_LAST_COMMITTED_XACT PG_NOTIFICATION_QUEUE_USAGE PG_MY_TEMP_SCHEMA PG_TABLE_SIZE PG_RELATION_SIZE
        PG_TOTAL_RELATION_SIZE PG_INDEXES_SIZE PG_DATABASE_SIZE PG_READ_FILE PG_READ_BINARY_FILE PG_STAT_FILE
        PG_LS_DIR
        """,
    "sqlite": """
        RANDOMBLOB CHANGES TOTAL_CHANGES LAST_INSERT_ROWID DATE TIME DATETIME JULIANDAY STRFTIME
        """,
    "spark": """
        CURDATE RANDN RANDSTR UNIFORM SHUFFLE MONOTONICALLY_INCREASING_ID SPARK_PARTITION_ID INPUT_FILE_NAME REFLECT
        TRY_REFLECT JAVA_METHOD
        """,
    "duckdb": """
        TODAY TRANSACTION_TIMESTAMP GET_CURRENT_TIMESTAMP GET_CURRENT_TIME SETSEED UUIDV4 UUIDV7 GEN_RANDOM_UUID
        CURRVAL TXID_CURRENT
        """,
}
NAMES = {dialect: frozenset((FUNCTIONS[""] + names).split()) for dialect, names in FUNCTIONS.items() if dialect}
# With so many arguments they speak of those alone.
AT_LEAST = {
    "UNIX_TIMESTAMP": 1, "UNIXEPOCH": 1, "DATE": 1, "TIME": 1, "DATETIME": 1, "JULIANDAY": 1, "AGE": 2, "STRFTIME": 2,
}  # fmt: skip
# What is called without parentheses. (`USER` alone is a column in MariaDB and SQLite.)
BARE = {
    "mysql": {
        "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIME", "LOCALTIMESTAMP", "UTC_TIMESTAMP", "UTC_DATE",
        "UTC_TIME", "CURRENT_USER", "CURRENT_ROLE", "SYSDATE",
    },
    "postgres": {
        "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_USER",
        "SESSION_USER", "SYSTEM_USER", "USER", "CURRENT_ROLE",
    },
    "sqlite": {"CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME"},
    "spark": {"CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP"},
    "duckdb": {"CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIME", "LOCALTIMESTAMP"},
}  # fmt: skip
# Texts that are a time of now where a time is wanted.
VOLATILE_TEXTS = {"mysql": {"now"}, "sqlite": {"now"}, "postgres": {"now", "today", "tomorrow", "yesterday"}}


def momentary(tokens: Sequence[Token], dialect: str) -> Iterator[tuple[Token, str]]:
    """The names of functions that say another thing each time, and how they are called."""
    for at, token in enumerate(tokens):
        name = token.text.upper()
        if token.token_type == TokenType.STRING:
            continue
        if _is(tokens, at + 1, TokenType.L_PAREN):
            count = _arguments(tokens, at + 1)
            if name in NAMES[dialect] and count < AT_LEAST.get(name, 999):
                yield token, f"{token.text}({'...' if count else ''})"
        elif name in BARE[dialect] and not _names(tokens, at):
            yield token, token.text


def called(tokens: Sequence[Token]) -> set[str]:
    """The names before parentheses: functions, and some words that are none."""
    return {
        token.text
        for at, token in enumerate(tokens)
        if token.text.isidentifier() and token.token_type != TokenType.STRING and _is(tokens, at + 1, TokenType.L_PAREN)
    }


def _names(tokens: Sequence[Token], at: int) -> bool:
    """Whether it is a column's name: in quotes, `t.user`, `... AS user`."""
    quoted = tokens[at].token_type == TokenType.IDENTIFIER
    return quoted or _is(tokens, at - 1, TokenType.DOT) or _is(tokens, at - 1, TokenType.ALIAS)


def _is(tokens: Sequence[Token], at: int, kind: TokenType) -> bool:
    return 0 <= at < len(tokens) and tokens[at].token_type == kind


def _arguments(tokens: Sequence[Token], opening: int) -> int:
    """How many stand in the parentheses that open there."""
    if _is(tokens, opening + 1, TokenType.R_PAREN):
        return 0
    depth, count = 0, 1
    for token in tokens[opening:]:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        count += depth == 1 and token.token_type == TokenType.COMMA
        if not depth:
            break
    return count
