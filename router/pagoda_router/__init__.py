"""The router: OpenAI requests in, each to the pod that already holds most of its prefix and has room for it.

Rules: the deciding files (policies, table, reservations, work, requests, messages, events) know no socket and no clock;
nothing here knows a tokenizer, the engine's code or the sidecar's.
"""
