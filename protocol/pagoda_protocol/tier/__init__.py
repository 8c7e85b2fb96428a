"""The engine↔sidecar contract: `tier.proto` and the stubs generated from it (`make generate`).

Only the sidecar package imports the stubs; an engine speaks through `pagoda_sidecar.client`.
"""

PROTOCOL_VERSION = 3
SOCKET_NAME = "tier.sock"
ARENA_NAME = "arena"
LOCK_NAME = "engine.lock"
