"""The disk tier: append-only segments of sealed records, below the RAM tier and beside the pool."""
