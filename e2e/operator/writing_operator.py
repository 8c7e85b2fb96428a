"""The operator's process with other work: as leader it writes its name into a ConfigMap, over and over.

    python -m e2e.operator.writing_operator --name … (all flags of pagoda_operator)

Everything around the work is the product's: election, fence, watches, queue, end. Who wrote when stands in the
ConfigMap `writers`, whose versions a story watches. On SIGUSR1 the process stops itself (SIGSTOP) in the worst moment
there is: the fence has just let the next write through, and no byte of it is on its way yet.
"""

import asyncio
import os
import signal
import sys
import time

from pagoda_operator.arguments import Settings, parse_arguments
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.errors import KubeError
from pagoda_operator.kube.fence import Fence
from pagoda_operator.kube.kinds import CONFIG_MAP
from pagoda_operator.process import Parts, run
from pagoda_runtime.logs import configure
from pagoda_runtime.metrics import Metrics

NAME = "writers"
WRITE_SECONDS = 0.1


class Freezing(Fence):
    """The product's fence, behind which a process may be stopped."""

    is_asked_to_freeze = False
    is_at_a_write = False

    def check(self) -> None:
        super().check()
        if Freezing.is_asked_to_freeze and Freezing.is_at_a_write:
            Freezing.is_asked_to_freeze = False
            os.kill(os.getpid(), signal.SIGSTOP)


def make_parts(settings: Settings, api: Api, metrics: Metrics) -> Parts:
    namespace = settings.lease_namespace

    async def keep_writing() -> None:
        while True:
            try:
                await write_once()
            except KubeError as error:
                sys.stderr.write(f"not written: {error}\n")
            await asyncio.sleep(WRITE_SECONDS)

    async def write_once() -> None:
        have = await api.get(CONFIG_MAP, namespace, NAME)
        metadata = {"namespace": namespace, "name": NAME}
        if have is not None:
            metadata["resourceVersion"] = have["metadata"]["resourceVersion"]
        data = {"writer": settings.name, "at": repr(time.time())}
        Freezing.is_at_a_write = have is not None
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await api.apply(CONFIG_MAP, manifest, manager=settings.name)
        Freezing.is_at_a_write = False

    async def do_nothing(namespace: str, name: str) -> None:
        sys.stderr.write(f"would reconcile {namespace}/{name}\n")

    return Parts(do_nothing, lambda _: None, (keep_writing,))


def freeze_soon(*_: object) -> None:
    Freezing.is_asked_to_freeze = True


if __name__ == "__main__":
    settings = parse_arguments()
    configure("operator", settings.name)
    signal.signal(signal.SIGUSR1, freeze_soon)
    asyncio.run(run(settings, make_parts, Freezing))
