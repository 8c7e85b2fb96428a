"""Kubernetes' own fields of a pod that an engine may have: the shapes, as in `core/v1`, cut to what serves an engine.

Left out on purpose: volumes that restricted Pod Security refuses (hostPath above all), `emptyDir` (nobody would count
what it takes), and what moves rights (projected tokens).
"""

from collections.abc import Callable, Mapping
from typing import Any

from pagoda_protocol.pool.reader import FieldError, boolean, choice, integer, text
from pagoda_protocol.pool.shapes import Shape, entries, fields, items, scalar
from pagoda_protocol.pool.texts import (
    DATA_KEY,
    DRIVER_NAME,
    LABEL_KEY,
    LABEL_VALUE,
    MODEST_SIZE,
    MOUNT_PATH,
    OBJECT_NAME,
    RELATIVE_PATH,
    SHORT_NAME,
    VARIABLE_NAME,
)

RESERVED_LABELS = ("pagoda-kv.io/", "app.kubernetes.io/", "pod-template-hash", "controller-revision-hash")
"""How labels begin that are the operator's, or by which Deployments tell pods apart."""
RESERVED_ANNOTATIONS = (
    "pagoda-kv.io/",
    "app.kubernetes.io/",
    "container.apparmor.security.beta.kubernetes.io/",  # a security context
    "controller.kubernetes.io/",  # which pod goes first
)
"""How annotations begin that are the operator's."""
RESERVED_VOLUMES = "pagoda-"
"""The prefix of all volumes that the operator adds."""
RESERVED_ENVIRONMENT = "PAGODA_"
"""The prefix of variables that mean something to our programs."""
RESERVED_VARIABLES = ("HOME", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
"""Variables that the operator sets."""
RESERVED_FOLDERS = ("/run/pagoda", "/etc/pagoda", "/var/lib/pagoda", "/dev/shm")
"""Where the operator mounts: nothing may lie there, below or above."""
RESERVED_FOLDER = "/tmp"
"""Mounted by the operator too; folders in it may be mounted."""


def _free(read: Callable[[object], str], *prefixes: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        name = read(value)
        if name.startswith(prefixes):
            raise FieldError(f"begins with {' or '.join(prefixes)}, which is the operator's ({name:.80}); take another")
        return name

    return check


def _variable_name(value: object) -> str:
    name = _free(VARIABLE_NAME, RESERVED_ENVIRONMENT)(value)
    if name in RESERVED_VARIABLES:
        raise FieldError(f"is one of {', '.join(RESERVED_VARIABLES)}, which are the operator's; take another")
    return name


def _mount_path(value: object) -> str:
    path = MOUNT_PATH(value)
    is_ours = any(_is_within(path, ours) or _is_within(ours, path) for ours in RESERVED_FOLDERS)
    if is_ours or path == RESERVED_FOLDER:
        raise FieldError(f"{path} would cover what the operator mounts; mount it elsewhere, such as at /mnt/{path[1:]}")
    return path


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _toleration_key(toleration: Mapping[str, Any]) -> tuple[str, str] | None:
    if "key" in toleration or toleration.get("operator") == "Exists":
        return None
    return "key", "is left out, which the operator Exists alone allows; give it"


def _toleration_value(toleration: Mapping[str, Any]) -> tuple[str, str] | None:
    if toleration.get("operator") == "Exists" and toleration.get("value"):
        return "value", "stands beside the operator Exists, which takes any; leave it out"
    return None


def _toleration_seconds(toleration: Mapping[str, Any]) -> tuple[str, str] | None:
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        return "tolerationSeconds", "stands beside another effect than NoExecute; leave it out"
    return None


def _expression_values(expression: Mapping[str, Any]) -> tuple[str, str] | None:
    least, most = {"In": (1, 32), "NotIn": (1, 32), "Gt": (1, 1), "Lt": (1, 1)}.get(expression["operator"], (0, 0))
    if least <= len(expression.get("values", ())) <= most:
        return None
    return "values", "has not what the operator wants; In and NotIn take some, Gt and Lt one, the others none"


def _spread_keys(constraint: Mapping[str, Any]) -> tuple[str, str] | None:
    keys, selector = constraint.get("matchLabelKeys", ()), constraint.get("labelSelector")
    if keys and selector is None:
        return "matchLabelKeys", "stands without labelSelector; give both"
    named = {*(selector or {}).get("matchLabels", ())}
    named |= {expression["key"] for expression in (selector or {}).get("matchExpressions", ())}
    if named.intersection(keys) or len(set(keys)) < len(keys):
        return "matchLabelKeys", "repeats a key, or names one of labelSelector; give each once"
    return None


def _spread_domains(constraint: Mapping[str, Any]) -> tuple[str, str] | None:
    if "minDomains" in constraint and constraint["whenUnsatisfiable"] != "DoNotSchedule":
        return "minDomains", "stands beside another whenUnsatisfiable than DoNotSchedule; leave it out"
    return None


def _claim_modes(claim: Mapping[str, Any]) -> tuple[str, str] | None:
    modes = claim["accessModes"]
    if len(set(modes)) < len(modes) or ("ReadWriteOncePod" in modes and len(modes) > 1):
        return "accessModes", "repeats a mode, or has others beside ReadWriteOncePod; give each once"
    return None


def _string(maximum: int) -> Shape:
    return scalar(text(r"[^\ud800-\udfff]*", "a string", maximum))


_NAME = scalar(OBJECT_NAME)
_KEY = scalar(LABEL_KEY)
_BOOLEAN = scalar(boolean)
_LABELS = entries(LABEL_KEY, LABEL_VALUE, 32)
_VALUES = items(scalar(LABEL_VALUE), 32)
_WEIGHT = scalar(integer(1, 100))

# Labels and where pods may run
NODE_SELECTOR = _LABELS
LABELS = entries(_free(LABEL_KEY, *RESERVED_LABELS), LABEL_VALUE, 32)
ANNOTATIONS = entries(_free(LABEL_KEY, *RESERVED_ANNOTATIONS), text(r"[^\ud800-\udfff]*", "a string", 4000), 16)
"""Kubernetes takes 256 KiB of them in all, and a character may take four bytes."""
TOLERATIONS = items(
    fields(
        key=_KEY,
        operator=scalar(choice("Exists", "Equal")),
        value=scalar(LABEL_VALUE),
        effect=scalar(choice("NoSchedule", "PreferNoSchedule", "NoExecute")),
        tolerationSeconds=scalar(integer(0, 2**31 - 1)),
        rules=[_toleration_key, _toleration_value, _toleration_seconds],
    ),
    32,
)
_LABEL_SELECTOR = fields(
    matchLabels=_LABELS,
    matchExpressions=items(
        fields(
            required={"key": _KEY, "operator": scalar(choice("In", "NotIn", "Exists", "DoesNotExist"))},
            values=_VALUES,
            rules=[_expression_values],
        ),
        16,
    ),
)
_NODE_TERM = fields(
    matchExpressions=items(
        fields(
            required={"key": _KEY, "operator": scalar(choice("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))},
            values=_VALUES,
            rules=[_expression_values],
        ),
        16,
    ),
    matchFields=items(
        fields(
            required={
                "key": scalar(choice("metadata.name")),
                "operator": scalar(choice("In", "NotIn")),
                "values": items(_NAME, 1, minimum=1),
            }
        ),
        16,
    ),
)
_NODE_AFFINITY = fields(
    requiredDuringSchedulingIgnoredDuringExecution=fields(
        required={"nodeSelectorTerms": items(_NODE_TERM, 16, minimum=1)}
    ),
    preferredDuringSchedulingIgnoredDuringExecution=items(
        fields(required={"weight": _WEIGHT, "preference": _NODE_TERM}), 16
    ),
)
_POD_TERM = fields(
    required={"topologyKey": _KEY},
    labelSelector=_LABEL_SELECTOR,
    namespaceSelector=_LABEL_SELECTOR,
    namespaces=items(scalar(SHORT_NAME), 16),
)
_POD_AFFINITY = fields(
    requiredDuringSchedulingIgnoredDuringExecution=items(_POD_TERM, 16),
    preferredDuringSchedulingIgnoredDuringExecution=items(
        fields(required={"weight": _WEIGHT, "podAffinityTerm": _POD_TERM}), 16
    ),
)
AFFINITY = fields(nodeAffinity=_NODE_AFFINITY, podAffinity=_POD_AFFINITY, podAntiAffinity=_POD_AFFINITY)
_HONOR = scalar(choice("Honor", "Ignore"))
SPREAD = items(
    fields(
        required={
            "maxSkew": scalar(integer(1, 1000)),
            "topologyKey": _KEY,
            "whenUnsatisfiable": scalar(choice("DoNotSchedule", "ScheduleAnyway")),
        },
        labelSelector=_LABEL_SELECTOR,
        matchLabelKeys=items(_KEY, 16),
        minDomains=scalar(integer(1, 1000)),
        nodeAffinityPolicy=_HONOR,
        nodeTaintsPolicy=_HONOR,
        rules=[_spread_keys, _spread_domains],
    ),
    16,
    unique=["topologyKey", "whenUnsatisfiable"],
)

# Volumes, their mounts, variables
_FILES = items(
    fields(required={"key": scalar(DATA_KEY), "path": scalar(RELATIVE_PATH)}, mode=scalar(integer(0, 0o777))), 64
)
_MODE = scalar(integer(0, 0o777))
_CLAIM = fields(
    required={
        "spec": fields(
            required={
                "accessModes": items(
                    scalar(choice("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")), 4, minimum=1
                ),
                "resources": fields(required={"requests": fields(required={"storage": scalar(MODEST_SIZE)})}),
            },
            storageClassName=_NAME,
            rules=[_claim_modes],
        )
    }
)
VOLUMES = items(
    fields(
        required={"name": scalar(_free(SHORT_NAME, RESERVED_VOLUMES))},
        one_of=True,
        persistentVolumeClaim=fields(required={"claimName": _NAME}, readOnly=_BOOLEAN),
        configMap=fields(required={"name": _NAME}, items=_FILES, defaultMode=_MODE, optional=_BOOLEAN),
        secret=fields(required={"secretName": _NAME}, items=_FILES, defaultMode=_MODE, optional=_BOOLEAN),
        csi=fields(
            required={"driver": scalar(DRIVER_NAME)},
            readOnly=_BOOLEAN,
            fsType=_string(63),
            volumeAttributes=entries(
                text(r"[^\ud800-\udfff]+", "a string", 253), text(r"[^\ud800-\udfff]*", "a string", 4096), 32
            ),
            nodePublishSecretRef=fields(required={"name": _NAME}),
        ),
        ephemeral=fields(required={"volumeClaimTemplate": _CLAIM}),
    ),
    32,
    unique=["name"],
)
VOLUME_MOUNTS = items(
    fields(
        required={"name": scalar(SHORT_NAME), "mountPath": scalar(_mount_path)},
        subPath=scalar(RELATIVE_PATH),
        readOnly=_BOOLEAN,
    ),
    32,
    unique=["mountPath"],
)
_KEY_OF = fields(required={"name": _NAME, "key": scalar(DATA_KEY)}, optional=_BOOLEAN)
ENV = items(
    fields(
        required={"name": scalar(_variable_name)},
        one_of=True,
        value=_string(32768),
        valueFrom=fields(
            one_of=True,
            secretKeyRef=_KEY_OF,
            configMapKeyRef=_KEY_OF,
            fieldRef=fields(
                required={
                    "fieldPath": scalar(
                        choice(
                            "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.hostIP",
                            "status.podIP",
                        )
                    )
                }
            ),
        ),
    ),
    64,
    unique=["name"],
)  # fmt: skip
