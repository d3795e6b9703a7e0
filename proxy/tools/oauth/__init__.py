"""OAuth 2.1 for connections: metadata of servers, requests to them, and stored tokens."""
