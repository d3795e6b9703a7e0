-- What must happen once, or must not be forgotten, of sign-ins to the web UI: codes that were used and
-- sessions that were signed out.  A row is deleted once its time is over.

CREATE TABLE ui_marks (
    name    TEXT NOT NULL PRIMARY KEY,
    holder  TEXT NOT NULL,           -- who left it: of two at once one is first
    until   REAL NOT NULL
) STRICT;

-- When the first piece of a turn came; NULL where none did, or where nobody noted it.
ALTER TABLE turns ADD COLUMN first_at REAL;
