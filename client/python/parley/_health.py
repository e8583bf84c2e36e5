"""The gRPC health service of an agent's server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

if TYPE_CHECKING:
    from typing import TypeAlias

    Context: TypeAlias = grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]


class Health(HealthServicer):
    """Reports SERVING until the stop. Unlike gRPC's own health service it then ends its watches."""

    def __init__(self, service: str) -> None:
        """Report the health of this service and of the server as a whole."""
        self._services = ("", service)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopping.set()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """Return the status."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        return self._state(request.service)

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:
        """Send the status and its change. It ends at the stop, which otherwise waits for it."""
        state = self._state(request.service)
        await context.write(state)
        await self._stopping.wait()
        if (last := self._state(request.service)) != state:
            await context.write(last)

    def _state(self, service: str) -> HealthCheckResponse:
        if service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        if self._stopping.is_set():
            return HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)
