"""Make docs/doctor.md from the doctor's codes, and what it knows of the CRD: `make generate` writes both.

A test says when one of them is stale.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crds.schema import load, version
from pagoda_cli.doctor.checks.definition import SCHEMA_FILE, describe_schema
from pagoda_cli.doctor.codes import CODES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "doctor.md"
SCHEMA = ROOT / "cli" / "pagoda_cli" / "doctor" / SCHEMA_FILE
_HEAD = """\
# pagoda doctor

```
pagoda doctor [--namespace NS] [--context CONTEXT] [--kubeconfig FILE] [--json]
```

Reads a live cluster and names each broken precondition of its InferencePools by a code that never changes its \
meaning. Without `--namespace` it looks at the pools of all namespaces. It changes nothing; all that it sends besides \
reads are `SubjectAccessReview`s, which ask what the operator may do. It ends within 75 seconds, whatever happens.

**Exit status**: 0 nothing is broken (there may be things good to know), 1 warnings, 2 errors, 3 the cluster cannot be \
read. A warning means that requests are served, but slower, or that something was not looked at.

**Rights.** It reads with your own rights: pools, workloads, pods, Services, policies, budgets and events of the \
namespaces with pools, the operator's Deployment and Lease, nodes, StorageClasses and the CRD. What you may not read \
is left out and named (PGD090). Pods are asked through the API server (`get pods/proxy`). Of Secrets it looks at \
the keys alone; without the right to read them it says so (PGD024).

**`--json`** prints one object. While its `version` is 1 members may be added and none changes:

```json
{"version": 1, "checkedAt": "2026-11-30T12:00:00+00:00", "cluster": "https://10.0.0.1:6443", "namespace": null,
 "pools": 2, "status": 1, "findings": [{"code": "PGD054", "severity": "warning", "title": "a tier is off",
  "object": {"kind": "Pod", "namespace": "shop", "name": "chat-engine-7f-x2x"}, "seen": "disk: no space left",
  "meaning": "…", "remedy": "…"}]}
```

`severity` is `info`, `warning` or `error`; `namespace` is null for all; `object.kind` is `Cluster`, with empty names, \
for what is about no one object.

## Codes

Made from `cli/pagoda_cli/doctor/codes.py` by `make generate`.

| code | severity | what it found | what it means | what to do |
| --- | --- | --- | --- | --- |
"""


def render() -> str:
    """Return the page."""
    rows = (
        f"| {name} | {code.severity.name.lower()} | {code.title} | {code.meaning} | {code.remedy} |"
        for name, code in CODES.items()
    )
    return _HEAD + "\n".join(rows) + "\n"


def schema() -> str:
    """Return what the doctor knows of the CRD of this release."""
    return json.dumps(describe_schema(version(load())["schema"]["openAPIV3Schema"]), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
    SCHEMA.write_text(schema(), "utf-8")
