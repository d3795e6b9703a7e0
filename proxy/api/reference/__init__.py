"""The reference that the server itself serves: its error codes, and its admin API as OpenAPI."""
