"""The forms in which families of models write tool calls as text."""
