"""The tensor-free half of the engine: which tokens are computed when, into which pages, and where KV comes from.

    submit ──► waiting ──admit──► running ──► step(): schedule ► run ► postprocess ──► token events
                                     │
                                     at each block boundary of a prompt (supply.py):
                                     device hit (prefix.py), follow an earlier request (claims.py),
                                     load from below (loading.py), or compute

Rules: no torch; the model is reached through `pagoda_engine.model.interface` alone, the tiers below the device through
the protocol in `tiers.py` alone. Nothing is re-exported, so that importing this package costs nothing.
"""
