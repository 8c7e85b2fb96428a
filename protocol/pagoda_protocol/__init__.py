"""What the parts of Pagoda and its users say to one another: names, bytes, schemas.

Rules: pure. No sockets, no clocks, no tensors, no servers; every function here gives the same answer in every process
for ever, and `tests/protocol` holds a second, hand-written implementation of every byte format against it.
"""
