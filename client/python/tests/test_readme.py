"""The snippets of README.md, unchanged except for addresses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from programs import output_of, parleyd, parleyd_binary

import parley
from parley import Message, RespondRequest, Role
from parley.v1.agent_service_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
SERVER, AGENT = "127.0.0.1:50051", "127.0.0.1:7002"

# The output of each snippet, in the order of execution.
PRINTS = {
    "Install": "",
    "Append": "[1, 2]\n",
    "Load": "ROLE_USER Which libraries keep state?\nROLE_ASSISTANT Zustand and Jotai do.\n",
    "Chat": "Tell me more.\nTURN_STATE_COMPLETED\n",
    "Route": "Previous: listed two libraries, Tell me more.\n['echo', 'librarian']\n",
    "Watch": "libraries 5 Which libraries keep state?\n",
    "Keep": "",
    "Records": ("state/search True\n{'step': 2}\n[{'step': 3}]\n['shelf.png', 'state/search']\n"),
    "Append many messages": "100\n",
    "Replace": "[1, 2]\n[3, 4]\n",
    "With asyncio": "hello there[1, 2, 3]\n",
    "Errors": "INVALID_ARGUMENT INVALID_REQUEST\nconversation_id\n",
}


def snippets() -> dict[str, str]:
    """Return the Python code of each section, by its heading."""
    found = {}
    for section in re.split(r"^## ", README, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if code := re.findall(r"^```python\n(.*?)^```$", body, re.MULTILINE | re.DOTALL):
            (found[heading],) = code
    return found


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a server's address, and the variables that all snippets share."""
    with parleyd(tmp_path_factory.mktemp("readme")) as server:
        names: dict[str, Any] = {}
        yield server.address, names
        names["client"].close()


@pytest.mark.parametrize("heading", PRINTS)
def test_snippet(
    session: tuple[str, dict[str, Any]], heading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snippet runs and prints its expected output."""
    address, names = session
    code = snippets()[heading].replace(SERVER, address)
    exec(compile(code, heading, "exec"), names)  # noqa: S102 - the code is from README.md
    assert capsys.readouterr().out == PRINTS[heading]


def test_every_snippet_is_run() -> None:
    """Every section with code is tested, and the first six are in order."""
    headings = list(snippets())
    assert set(headings) == {*PRINTS, "Sign in and TLS", "An agent of your own"}
    assert headings[1:6] == ["Append", "Load", "Chat", "Route", "Watch"]


def test_sign_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands start a server, and the snippet signs in."""
    section = README.partition("## Sign in and TLS")[2]
    block = re.findall(r"^    (.*\n)", section.partition("```python")[0], re.MULTILINE)
    commands = "".join(block).replace("\\\n", "").splitlines()
    assert [command.split()[0] for command in commands] == ["openssl", "bin/parleyd", "bin/parleyd"]
    monkeypatch.chdir(tmp_path)
    for command in commands[:-1]:
        line = re.sub("^bin/parleyd", parleyd_binary(), command)
        subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True)
    with parleyd(tmp_path, "", *commands[-1].split()[1:]) as server:
        port = server.address.rpartition(":")[2]
        code = snippets()["Sign in and TLS"].replace("localhost:50051", f"localhost:{port}")
        exec(compile(code, "Sign in and TLS", "exec"), {"parley": parley})  # noqa: S102 - see above
    assert capsys.readouterr().out == "echo\n"


def test_agent(tmp_path: Path) -> None:
    """The agent serves and answers."""
    program = tmp_path / "parrot.py"
    code = snippets()["An agent of your own"]
    program.write_text(code.replace(AGENT, "127.0.0.1:0"))
    with subprocess.Popen(
        [sys.executable, "-u", str(program)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            address = output_of(process).readline().strip()
            ask = RespondRequest(messages=[Message(role=Role.ROLE_USER, content="say it")])
            with grpc.insecure_channel(address) as channel:
                pieces = [piece.text for piece in AgentServiceStub(channel).Respond(ask)]
            assert pieces == ["say ", "it "]
            process.terminate()
            assert process.wait() == 0
        finally:
            process.kill()
