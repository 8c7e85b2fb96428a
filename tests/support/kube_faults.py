"""Faults between the operator and an API server: a process that dies at its n-th call, before or after it took effect.

transport = Dying(real_transport, at=7, after=True)     # the 7th request (from 0) takes effect, nobody hears of it
…run until `Killed` comes out, throw everything away, start anew on the same API server…
"""

from pagoda_operator.kube.transport import Answer, Request, Transport


class Killed(BaseException):
    """The process is gone: no `except Exception` may go on after it."""


class Dying:
    """A transport whose process dies at request number `at`; `.num_requests` counts those that were tried."""

    def __init__(self, transport: Transport, at: int | None = None, after: bool = False) -> None:
        self._transport = transport
        self._at = at
        self._after = after
        self.num_requests = 0
        self.died_at: Request | None = None

    async def send(self, request: Request) -> Answer:
        if self.died_at is not None:
            raise Killed("a dead process sends nothing")
        number, self.num_requests = self.num_requests, self.num_requests + 1
        if number != self._at:
            return await self._transport.send(request)
        self.died_at = request
        if self._after:
            await self._transport.send(request)
        raise Killed(f"killed {'after' if self._after else 'before'} {request.method} {request.path}")
