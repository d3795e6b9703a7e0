"""What earlier requests left: hidden turns, effects that a retry repeats, conversations."""
