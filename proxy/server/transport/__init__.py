"""Parts of aiohttp and of the WebSocket protocol on which connections stand."""
