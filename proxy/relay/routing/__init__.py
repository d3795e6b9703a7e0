"""The choice of an upstream: routes of a model, fallback, circuit breaker, deadlines, prices."""
