"""The SQL dialects of captures and sinks: lexer, clauses, SELECT."""
