"""Programs that never close their clients end, with each Python of this machine.

`make testpython` in the root of the repository finds and sets up the Pythons, see pythons.sh.
Without them the programs run only in the Python that runs pytest.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from fake import TURN, Hanging, reply, serving
from programs import output_of

from parley import ListAgentsResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parley import ChatRequest, ChatResponse

FOLDER = Path(__file__).parents[1]
RUNS = 3  # runs of each program, at the same time
LIMIT = 60.0  # seconds; only a program that hangs takes so long


def pythons() -> dict[str, str]:
    """Return the Pythons that run the programs, by version; the running one is the first."""
    own = "{}.{}".format(*sys.version_info)
    others = {path.parents[1].name: str(path) for path in FOLDER.glob(".pythons/*/bin/python")}
    return {own: sys.executable} | {key: others[key] for key in sorted(others) if key != own}


class Program(NamedTuple):
    """A program and its expected end."""

    code: str
    status: int = 0
    output: str = ""
    errors: str = ""
    """A pattern for its complete standard error."""


BEGIN = """
import asyncio, atexit, concurrent.futures, gc, signal, sys, threading
import grpc
import parley
from parley import *

address = sys.argv[1]
short, endless = ChatRequest(content="short"), ChatRequest(content="endless")
watch = WatchConversationsRequest()
append = AppendMessagesRequest(conversation_id="c")
"""
SYNC = BEGIN + "client = Client(address)\n"
ASYNC = BEGIN + "client = AsyncClient(address)\n"

FINISH = "list(client.chat(short))\n"
FINISH_ASYNC = """
async def finish():
    return [event.index async for event in client.chat(short)]
"""

PROGRAMS = {
    "finished": Program(SYNC + FINISH),
    "finished, the client in a list": Program(SYNC + FINISH + "clients = [client]\ndel client"),
    "finished, several clients": Program(
        BEGIN + "clients = [Client(address) for _ in range(5)]\n"
        "for client in clients:\n    list(client.chat(short))"
    ),
    "finished, the client in a function": Program(
        BEGIN + "def main():\n    client = Client(address)\n    list(client.chat(short))\nmain()"
    ),
    "a stream that is not begun": Program(SYNC + "events = client.chat(short)"),
    "a loop that is left": Program(SYNC + "for _ in client.chat(endless):\n    break"),
    "a stream kept in the middle": Program(SYNC + "events = client.chat(endless)\nnext(events)"),
    "two streams kept in the middle": Program(
        SYNC + "streams = [client.chat(endless), client.watch_conversations(watch)]\n"
        "for stream in streams:\n    next(stream)"
    ),
    "an export kept in the middle": Program(
        SYNC + "export = client.export_conversations(ExportConversationsRequest())\nnext(export)"
    ),
    "an appender with a request under way": Program(
        SYNC + "appender = client.appender()\n"
        "print(appender.append(append).result().created)\nappender.append(append)",
        output="False\n",
    ),
    "an exception": Program(
        SYNC + "for _ in client.chat(endless):\n    1 / 0",
        status=1,
        errors=r"Traceback .*\nZeroDivisionError: division by zero\n",
    ),
    "sys.exit": Program(SYNC + "for _ in client.chat(endless):\n    sys.exit(3)", status=3),
    "SIGINT": Program(
        SYNC + "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "for _ in client.chat(endless):\n    print('interrupt me', flush=True)",
        status=-signal.SIGINT,
        output="interrupt me\n" * 2,
        errors=r"Traceback .*\nKeyboardInterrupt\n",
    ),
    "a watch in a daemon thread": Program(
        SYNC
        + """
begun = threading.Event()
def loop():
    for _ in client.watch_conversations(watch):
        begun.set()
threading.Thread(target=loop, daemon=True).start()
begun.wait()
"""
    ),
    "calls in daemon threads": Program(
        SYNC
        + """
begun = threading.Semaphore(0)
def get():
    begun.release()
    client.get_conversation(GetConversationRequest(conversation_id="c"))
for _ in range(3):
    threading.Thread(target=get, daemon=True).start()
    begun.acquire()
"""
    ),
    # Python waits for such a thread, which may still use the client.
    "a thread that outlives the main thread": Program(
        SYNC
        + """
begun = threading.Event()
def loop():
    with client.watch_conversations(watch) as changes:
        print(next(changes).cursor)
        begun.set()
        threading.main_thread().join()
    print(len(client.list_agents(ListAgentsRequest()).agents))
threading.Thread(target=loop).start()
begun.wait()
""",
        output="1\n0\n",
    ),
    "a pool of threads": Program(
        SYNC
        + """
pool = concurrent.futures.ThreadPoolExecutor()
chats = [pool.submit(lambda: list(client.chat(short))) for _ in range(3)]
print([len(chat.result()) for chat in chats])
""",
        output="[4, 4, 4]\n",
    ),
    "an exit handler that uses the client": Program(
        BEGIN
        + """
atexit.register(lambda: print(len(client.list_agents(ListAgentsRequest()).agents)))
client = Client(address)
list(client.chat(short))
""",
        output="0\n",
    ),
    "asyncio": Program(
        ASYNC + FINISH_ASYNC + "print(asyncio.run(finish()))", output="[1, 2, 3, 4]\n"
    ),
    "asyncio, one stream left, one kept in the middle": Program(
        ASYNC
        + """
async def main():
    global kept
    async for _ in client.chat(endless):
        break
    kept = client.watch_conversations(watch)
    await anext(kept)
asyncio.run(main())
"""
    ),
    "asyncio, an appender with a request under way": Program(
        ASYNC
        + """
async def main():
    appender = client.appender()
    print((await (await appender.append(append))).created)
    await appender.append(append)
asyncio.run(main())
""",
        output="False\n",
    ),
    "asyncio in a daemon thread": Program(
        ASYNC
        + """
begun = threading.Event()
async def loop():
    async for _ in client.watch_conversations(watch):
        begun.set()
threading.Thread(target=lambda: asyncio.run(loop()), daemon=True).start()
begun.wait()
"""
    ),
    "an event loop that is never closed": Program(
        ASYNC + FINISH_ASYNC + "loop = asyncio.new_event_loop()\nloop.run_until_complete(finish())"
    ),
    "an event loop that is stopped while the client is closed": Program(
        ASYNC
        + FINISH_ASYNC
        + """
loop = asyncio.new_event_loop()
print(loop.run_until_complete(finish()))
asyncio.run(client.close())
loop.close()
""",
        output="[1, 2, 3, 4]\n",
    ),
    # Each loop has its own connection. After the end of the loop no channel remains.
    "several event loops": Program(
        ASYNC
        + FINISH_ASYNC
        + """
for _ in range(3):
    print(asyncio.run(finish()))
loop = asyncio.new_event_loop()
print(loop.run_until_complete(finish()))
loop.close()
print(asyncio.run(finish()))
gc.collect()
print(*(type(thing) for thing in gc.get_objects() if isinstance(thing, grpc.aio.Channel)))
""",
        output="[1, 2, 3, 4]\n" * 5 + "\n",
        # All event loops share the events of gRPC. The next loop reports an event of a channel that
        # comes after the end of the channel's own loop; gRPC cannot wait for it. Nothing is lost.
        errors=r"(Exception in callback PollerCompletionQueue\._handle_events"
        r".*\nRuntimeError: Event loop is closed\n)?",
    ),
    "an agent that is never stopped": Program(
        BEGIN
        + """
class Silent(Agent):
    async def respond(self, request):
        yield ""
loop = asyncio.new_event_loop()
server = Silent().serving()
loop.run_until_complete(server.__aenter__())
"""
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the address of a server that ends only short chats."""
    hanging = Hanging()

    def chat(request: ChatRequest, context: Any) -> Iterator[ChatResponse]:
        yield from (
            map(reply, TURN) if request.content == "short" else hanging.chat(request, context)
        )

    with serving(
        workers=64,  # A killed program keeps its threads busy for a moment.
        Chat=chat,
        WatchConversations=hanging.watch,
        ExportConversations=hanging.export,
        GetConversation=hanging.get,
        AppendStream=hanging.append,
        ListAgents=lambda *_: ListAgentsResponse(),
    ) as address:
        yield address


@pytest.mark.parametrize("python", pythons().values(), ids=pythons())
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_without_close(server: str, python: str, program: Program) -> None:
    """It ends with its own exit code and writes only its own output."""
    running = [
        # Warnings, such as of objects not closed or awaited, would be on standard error.
        subprocess.Popen(
            [python, "-W", "always", "-c", program.code, server],
            env={**os.environ, "PYTHONPATH": str(FOLDER)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(RUNS)
    ]
    try:
        for process in running:
            interrupted = ""
            if program.status == -signal.SIGINT:
                interrupted = output_of(process).readline() + output_of(process).readline()
                process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=LIMIT)
            if interrupted and errors.endswith("RuntimeError: cannot release un-acquired lock\n"):
                # threading.Condition.wait raises this in place of KeyboardInterrupt if the signal
                # comes while it releases its lock. The program has ended, which is what counts.
                continue
            assert re.fullmatch(program.errors, errors, re.DOTALL), errors
            assert (process.returncode, interrupted + output) == (program.status, program.output)
    finally:
        for process in running:
            process.kill()
            process.communicate()
