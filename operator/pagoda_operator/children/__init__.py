"""What a pool wants to be in the cluster: from a pool to manifests. Pure: no API client, no framework, no clock."""

from pagoda_operator.children.inputs import Images, Manifest, Owner, PolicyPeers, Seen
from pagoda_operator.children.render import render
from pagoda_operator.children.secrets import render_secrets

__all__ = ["Images", "Manifest", "Owner", "PolicyPeers", "Seen", "render", "render_secrets"]
