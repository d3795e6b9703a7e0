"""Which upstream answers: routes of a model, fallback, circuit breaker, deadlines, prices."""
