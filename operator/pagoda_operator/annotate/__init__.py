"""The routing annotations on engine pods: what pods say of their caches, coarse and slow, for any router to read."""

from pagoda_operator.annotate.annotator import Annotator

__all__ = ["Annotator"]
