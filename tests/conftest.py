"""For all tests: Hypothesis without deadlines, for kernels compile on first use and machines are busy."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
