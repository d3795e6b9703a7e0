"""OpenAI Responses: request, response and stream."""
