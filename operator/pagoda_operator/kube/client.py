"""How this process reaches the API server: the file that KUBECONFIG names, or the service account of its pod.

Both clients, ours and kopf's, are given the same.
"""

import os

import kopf
from kubernetes.aio import config
from kubernetes.aio.client import Configuration


class StartError(Exception):
    """The process cannot start; the message names what it needs and what is wrong with it."""


async def configuration() -> Configuration:
    """Return a new configuration for one client.

    Raises:
        StartError: there is neither a KUBECONFIG that can be read nor a service account.
    """
    made = Configuration()
    path = os.environ.get("KUBECONFIG")
    try:
        if path:
            await config.load_kube_config(config_file=path, client_configuration=made, persist_config=False)
        else:
            config.load_incluster_config(client_configuration=made)
    except (config.ConfigException, OSError, ValueError) as error:
        what = f"KUBECONFIG={path}" if path else "the pod's service account (KUBECONFIG is not set)"
        raise StartError(f"{what} does not say how to reach an API server: {error}") from error
    return made


async def connection() -> kopf.ConnectionInfo:
    """Return the same for kopf, which asks again when the API server no longer takes its token."""
    made = await configuration()
    header = await made.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=made.host,
        ca_path=made.ssl_ca_cert,
        insecure=not made.verify_ssl,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=made.cert_file,
        private_key_path=made.key_file,
        proxy_url=made.proxy,
    )
