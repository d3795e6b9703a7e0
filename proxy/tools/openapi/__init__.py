"""Tools from OpenAPI documents: operations that an operator allowed, each called as its document says."""
