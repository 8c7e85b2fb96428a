"""What pods say of themselves: asked on a schedule, kept for status and annotations."""

from pagoda_operator.scrape.fleet import Fleet, PodReport

__all__ = ["Fleet", "PodReport"]
