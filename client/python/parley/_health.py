"""The health of an agent's server."""

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
    """Serves until the stop, and then does not. Unlike gRPC's own it ends its watches there."""

    def __init__(self, service: str) -> None:
        """Tell of this service, and of the server as a whole."""
        self._services = ("", service)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Say NOT_SERVING from now on."""
        self._stopping.set()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """Tell the state."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._state(request.service)

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:
        """Tell the state and its change; the stop ends it, which would have to wait else."""
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
