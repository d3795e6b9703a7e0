"""What a tool declares: its schema, arguments, results, redaction."""
