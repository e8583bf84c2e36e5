"""A workflow for the tests: it counts in a loop, with a checkpoint after each step."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_framework import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    register_checkpoint_type,
    response_handler,
)
from typing_extensions import Never

from parley.adapters.agent_framework import ParleyCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_framework import CheckpointStorage


@dataclass
class Count:
    """A message of the workflow. Checkpoints contain it as a pickle."""

    number: int
    steps: tuple[int, ...] = ()


register_checkpoint_type(Count)


class Counter(Executor):
    """Sends itself the next number until the last."""

    def __init__(self, last: int, on_step: Callable[[int], None]) -> None:
        """Make an executor that calls a function for each step."""
        super().__init__(id="counter")
        self._last = last
        self._on_step = on_step
        self._seen: list[int] = []

    @handler
    async def count(self, count: Count, context: WorkflowContext[Count, list[int]]) -> None:
        """Do one step."""
        self._seen.append(count.number)
        self._on_step(count.number)
        if count.number < self._last:
            await context.send_message(Count(count.number + 1, (*count.steps, count.number)))
        else:
            await context.yield_output([*self._seen, *count.steps])

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state."""
        return {"seen": self._seen}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Use a state."""
        self._seen = state["seen"]


def counting(
    storage: CheckpointStorage, last: int, on_step: Callable[[int], None] = lambda _: None
) -> Workflow:
    """Return a workflow that counts from the number of its input."""
    counter = Counter(last, on_step)
    builder = WorkflowBuilder(
        name="counting/1", start_executor=counter, checkpoint_storage=storage, max_iterations=1000
    )
    return builder.add_edge(counter, counter).build()


def counted(last: int) -> list[int]:
    """Return the output of the workflow: each step once in its state and once in its messages."""
    return [*range(last + 1), *range(last)]


class Approval(Executor):
    """Asks a person."""

    @handler
    async def ask(self, text: str, context: WorkflowContext) -> None:
        """Ask."""
        await context.request_info(text, response_type=str, request_id="request")

    @response_handler
    async def answered(
        self, original_request: str, response: str, context: WorkflowContext[Never, str]
    ) -> None:
        """Use the answer."""
        await context.yield_output(f"{original_request}: {response}")


def approving(storage: CheckpointStorage) -> Workflow:
    """Return a workflow that asks a person."""
    start = Approval(id="approval")
    return WorkflowBuilder(
        name="approving", start_executor=start, checkpoint_storage=storage
    ).build()


def main() -> None:
    """Count to 900 with the server that the last argument names, and print each step."""
    storage = ParleyCheckpointStorage(sys.argv[-1])
    workflow = counting(storage, 900, lambda number: print(number, flush=True))

    async def run() -> None:
        await workflow.run(Count(0))

    asyncio.run(run())
