"""A recorded run once more: with the model's words and the tools' results of the record."""
