"""How hypothesis works here: no verdict by the wall clock, which a busy machine would turn into chance."""

from hypothesis import HealthCheck, settings

settings.register_profile("orrery", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("orrery")
