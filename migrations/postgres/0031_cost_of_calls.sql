-- What tool calls cost, in billionths of the currency of the prices (tools.prices).
-- NULL: the tool has no price, it was not called, or the row is older than this column.

ALTER TABLE tool_invocations ADD COLUMN cost BIGINT;
