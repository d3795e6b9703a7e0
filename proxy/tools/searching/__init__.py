"""Tool search: finds tools by words, for models that are not shown all of them."""
