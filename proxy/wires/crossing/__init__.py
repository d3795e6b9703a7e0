"""The parts that all dialects share to translate requests into conversations and back."""
