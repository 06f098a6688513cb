-- topic: *
-- format: json
TRUE
