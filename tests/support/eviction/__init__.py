"""Judging eviction: traces of requests, what the best possible cache would have hit, and replays of policies."""
