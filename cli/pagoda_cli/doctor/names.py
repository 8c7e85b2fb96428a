"""What the operator and the chart call things, as far as the doctor looks for them.

The parts do not know one another, so these are said twice; tests/contract holds them together.
"""

GROUP, VERSION, PLURAL = "pagoda-kv.io", "v1alpha1", "inferencepools"
CRD = f"{PLURAL}.{GROUP}"
OTHER_CRD = f"{PLURAL}.inference.networking.k8s.io"
POOL_LABEL, PART_LABEL = f"{GROUP}/pool", f"{GROUP}/part"
ENGINE, ROUTER, MEMCACHED = "engine", "router", "memcached"
ENGINE_PORT, SIDECAR_PORT, MEMCACHED_PORT = 8000, 8001, 11211
OPERATOR_LABELS = {"app.kubernetes.io/part-of": "pagoda", "app.kubernetes.io/component": "operator"}

# What the operator must be allowed to: API group, resource, verbs. In the namespaces that it serves …
OPERATOR_RIGHTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (GROUP, PLURAL, ("get", "list", "watch")),
    (GROUP, f"{PLURAL}/status", ("patch",)),
    *(
        ("apps", kind, ("get", "list", "watch", "create", "patch", "delete"))
        for kind in ("deployments", "statefulsets")
    ),
    *(
        ("", kind, ("get", "list", "watch", "create", "patch", "delete"))
        for kind in ("services", "configmaps", "serviceaccounts")
    ),
    ("policy", "poddisruptionbudgets", ("get", "list", "watch", "create", "patch", "delete")),
    ("networking.k8s.io", "networkpolicies", ("get", "list", "watch", "create", "patch", "delete")),
    *(
        ("rbac.authorization.k8s.io", kind, ("get", "list", "watch", "create", "patch", "delete"))
        for kind in ("roles", "rolebindings")
    ),
    ("", "pods", ("get", "list", "watch", "patch")),
    ("", "secrets", ("create", "delete")),
    ("events.k8s.io", "events", ("create",)),
)
# … and in its own, for the Lease of its name.
LEASE_VERBS = ("get", "update")


def child(pool_name: str, part: str) -> str:
    """Return the name of a part's children."""
    return f"{pool_name}-{part}"


def pool_secret(pool_name: str, uid: str) -> str:
    """Return the name of the Secret that is made for a pool that names none."""
    return f"{pool_name}-{uid.replace('-', '')[:8]}"


def memcached_secret(pool_name: str, uid: str) -> str:
    """Return the name of the Secret that managed memcached nodes are spoken to with."""
    return f"{pool_name}-mc-{uid.replace('-', '')[:8]}"
