"""OpenAI Chat Completions: request, response and stream."""
