"""`pagoda doctor`: reads a live cluster and names each broken precondition.

command ──► reading (the API server, every call with a deadline) ──► collect ──► Snapshot
                                                                                   │ checks/: pure
report (text, JSON, exit status) ◄── Findings, each of one of the codes ◄──────────┘
"""
