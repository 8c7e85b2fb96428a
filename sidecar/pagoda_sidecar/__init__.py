"""The sidecar beside each engine: keeps KV blocks alive below the device and tells routers what this pod holds."""
