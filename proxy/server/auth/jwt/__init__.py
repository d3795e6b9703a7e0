"""JSON Web Tokens of an OpenID provider as credentials of clients."""
