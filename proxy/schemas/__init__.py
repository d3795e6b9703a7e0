"""JSON Schemas as model providers read them."""
