"""Random faults against the real sidecar process and the real memcached, with an oracle that knows every right byte.

universe       which blocks there are, and what each must hold         the oracle, pure
engine         an engine stand-in: a process with the real client      python -m tests.faults.engine
calls          what its threads do, and what they hold against the oracle
world          the processes of one run
mischief       which fault comes next, from a seed
storm          engines and faults at once, calm in between: everything must be given back
long           the long form of it                                     make faults
"""
