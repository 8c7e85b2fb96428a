"""Benches: `python -m bench NAME`. Each compares its arms inside one run and prints ratios."""
