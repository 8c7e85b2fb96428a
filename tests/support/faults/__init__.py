"""Faults for tests, from the outside: a TCP proxy before memcached, and a sidecar whose disk fails when told.

proxy         a TCP proxy in a thread of its own                sockets
mutations     what can be done to one record on its way         pure
meta_stream   memcached's meta protocol cut into frames         pure
"""
