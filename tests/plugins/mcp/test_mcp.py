"""The server for agents, called by the client of the `mcp` package over stdio."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import click
import pytest

import workbench as wb
from workbench.cli import workbench as commands
from workbench.plugins.mcp.server import TOOLS, command_line, find_tools, outline_arguments

CRASH = """
import os, sys, time

if "doctor" in sys.orig_argv:
    for part in ("first ", "line\\nsecond line\\n"):
        os.write(2, part.encode())
        time.sleep(0.2)
    os.write(1, b'{"ready": tr')
    os._exit(1)
"""
CONTEXT = click.Context(commands)
ROOT = Path(__file__).resolve().parents[3]


def test_the_tools_are_commands_with_their_options():
    assert set(TOOLS) - {"optimize"} <= {*commands.list_commands(CONTEXT)}  # of others
    schema = outline_arguments(commands.commands["export"])
    assert schema["required"] == ["model"]
    assert schema["properties"]["sizes"]["type"] == "array"
    assert "fp16" in schema["properties"]["dtype"]["description"]
    assert outline_arguments(commands.commands["run"])["properties"]["runs"]["type"] == "integer"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("export", {"model": "a.py:N", "dtype": "int8"}, ["--dtype=int8", "--", "a.py:N"]),
        ("export", {"model": "--out=/x"}, ["--", "--out=/x"]),
        ("run", {"subject": "m", "isa_ladder": True}, ["--isa-ladder", "--", "m"]),
        ("export", {"model": "m", "settings": ["fresh=yes"], "sizes": ["a=1", "b=2"]},
         ["--size=a=1", "--size=b=2", "--measure=fresh=yes", "--", "m"]),
        ("compare", {"names": ["a"], "nonsense": False}, ["--nonsense", "--", "a"]),
        ("compare", {"names": ["a", "b"], "nonsense": 1}, ["--nonsense=1", "--", "a", "b"]),
    ],
)  # fmt: skip
def test_a_call_becomes_a_command_line(tool, arguments, words):
    assert command_line(commands.commands[tool], arguments) == [tool, "--json", *words]


def test_without_the_package_the_command_says_how_to_install_it(cli, monkeypatch):
    monkeypatch.setattr("workbench.plugins.mcp.server.find_spec", lambda name: None)
    code, out, err = cli("mcp")
    assert (code, out) == (1, "")
    assert re.search(r" install -e '?/\S+\[mcp\]", err), "from this checkout"


def test_a_client_runs_the_steps_of_the_playbooks(tmp_path):
    client = pytest.importorskip("mcp", reason="mcp, an extra, is not installed")
    import anyio
    from mcp.client.stdio import StdioServerParameters, stdio_client

    run_dir = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "out_toy_cnn" / "runs" / "linux")
    marker = tmp_path / "ran"
    (tmp_path / "json.py").write_text(f"open({str(marker)!r}, 'w')\n")  # never to be imported
    stranger = shutil.copytree(run_dir, tmp_path / "stranger")
    manifest = json.loads((stranger / "manifest.json").read_text())
    manifest["plan"]["stem"] = "../../escaped"
    (stranger / "manifest.json").write_text(json.dumps(manifest))
    # A command that dies amid its output, after two lines of which one comes in two parts.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CRASH)
    progress = []

    async def note(done, total, message):
        progress.append(message)

    async def talk():
        environment = {
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT), *sys.path])
        }
        server = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "workbench", "mcp", str(tmp_path)],
            env=environment,
        )
        async with client.Client(stdio_client(server)) as session:
            listed = await session.list_tools()
            assert [tool.name for tool in listed.tools] == list(find_tools(CONTEXT))
            called = [
                await session.call_tool(name, arguments, progress_callback=note)
                for name, arguments in (
                    ("findings", {"run_dir": "nowhere"}),
                    ("findings", {"run_dir": "out_toy_cnn/runs/linux"}),
                    ("export", {"model": "toy_cn"}),
                    ("findings", {"run_dir": "stranger"}),
                    ("lab", {}),
                    ("doctor", {}),
                )
            ]
        return called

    missing, findings, typo, hostile, unknown, crashed = anyio.run(talk)
    assert missing.is_error and "no such file" in missing.structured_content["error"]["what"]
    assert findings.structured_content["findings"] and not findings.is_error
    assert typo.is_error and "did you mean 'toy_cnn'" in typo.structured_content["error"]["hint"]
    assert hostile.is_error and "is no valid name" in hostile.structured_content["error"]["what"]
    assert unknown.is_error and unknown.content[0].text.startswith("unknown tool")
    assert crashed.is_error and crashed.content[0].text.startswith("the command crashed: ")
    assert any("unknown model" in message for message in progress)
    assert progress[-2:] == ["first line", "second line"]
    assert not marker.exists()
    assert not list(tmp_path.parent.glob("escaped*"))
