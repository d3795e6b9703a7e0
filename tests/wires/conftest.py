"""Property tests of this folder run to their end however slow the machine is: no timing decides a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("wires", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wires")
