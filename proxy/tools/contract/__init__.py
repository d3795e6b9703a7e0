"""The declaration of a tool: its schema, arguments, results, redaction."""
