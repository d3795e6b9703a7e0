"""The reference that the server itself serves: what its errors mean, and its admin API as OpenAPI."""
