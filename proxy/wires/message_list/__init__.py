"""What dialects have in common whose requests hold the conversation as a list of messages."""
