-- Definitions of MCP tools that an operator has allowed: what is offered, and what a server is held to.
-- No content: they are nobody's conversation, so they neither expire nor go with a run.

CREATE TABLE mcp_pins (
    id          TEXT NOT NULL PRIMARY KEY,
    pin         TEXT NOT NULL,           -- JSON: the definition, its digest, who allowed it and when
    updated_at  REAL NOT NULL
) STRICT;
