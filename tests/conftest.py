"""What holds for all tests: hypothesis judges no times, since a busy machine is no defect of ours."""

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
