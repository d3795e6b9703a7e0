"""OAuth 2.1 for connections: what servers say of themselves, what they are asked, and what is kept."""
