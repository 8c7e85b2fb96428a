"""What every program of Pagoda needs to run: logs, metrics, live files, deadlines, a breaker, a graceful stop.

Rules: stands on the protocol package alone, knows no part. Clocks are parameters wherever something is decided.
"""
