"""The playbooks' steps as tools of the Model Context Protocol: each runs a command with --json."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from workbench import WorkbenchError
from workbench.api import Output, command

TOOLS = (
    *("doctor", "export", "run", "profile", "analyze", "findings"),
    *("optimize", "compare", "trace", "report", "validate"),
)
_TYPES = {"integer": "integer", "integer range": "integer", "float": "number"}
_LONGEST_END_S = 60


@command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.pass_context
def mcp(context: click.Context, folder: Path) -> Output:
    """Serve the playbooks' steps to agents, over the Model Context Protocol on stdio.

    The tools work in FOLDER [default: here].
    """
    if not find_spec("mcp"):
        raise WorkbenchError("mcp is not installed", install="executorch-workbench[mcp]")
    os.chdir(folder)
    tools = find_tools(context)
    return Output([], {"tools": [*tools]}, then=lambda: answer_requests(tools))


def find_tools(context: click.Context) -> dict[str, click.Command]:
    """The commands that are tools, of those that are installed."""
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    commands = {name: root.command.get_command(root, name) for name in TOOLS}
    return {name: command for name, command in commands.items() if command}


def outline_arguments(tool: click.Command) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: those of its command, and their help."""
    properties: dict[str, Any] = {}
    for param in tool.params:
        flag = isinstance(param, click.Option) and param.is_flag
        kind = {"type": "boolean" if flag else _TYPES.get(param.type.name, "string")}
        several = param.nargs == -1 or getattr(param, "multiple", False)
        described = {"type": "array", "items": kind} if several else kind
        text = getattr(param, "help", None) or param.metavar
        properties[str(param.name)] = described | ({"description": text} if text else {})
    del properties["json"]
    required = [str(param.name) for param in tool.params if param.required]
    return {"type": "object", "properties": properties, "required": required}


def command_line(tool: click.Command, arguments: Mapping[str, Any]) -> list[str]:
    """The words of a call; click refuses unknown names. No value can become an option."""
    params = {str(param.name): param for param in tool.params}
    options, positional = ["--json"], []
    for name in [*params, *(arguments.keys() - params)]:
        values = arguments.get(name)
        for value in values if isinstance(values, list) else [values]:
            option = params[name].opts[0] if name in params else f"--{name}"
            if value is None:
                continue
            if isinstance(params.get(name), click.Argument):
                positional.append(str(value))
            elif not isinstance(value, bool):
                options.append(f"{option}={value}")
            else:
                off = params[name].secondary_opts[:1] if name in params else [option]
                options += [option] if value else off
    return [str(tool.name), *options, "--", *positional]


def answer_requests(tools: Mapping[str, click.Command]) -> None:
    """Answer requests on stdin until it ends."""
    import anyio
    import mcp_types as types
    from anyio.streams.text import TextReceiveStream
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        described = [
            types.Tool(name=name, description=tool.help, input_schema=outline_arguments(tool))
            for name, tool in tools.items()
        ]
        return types.ListToolsResult(tools=described)

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        if params.name not in tools:
            unknown = types.TextContent(text=f"unknown tool; valid: {', '.join(tools)}")
            return types.CallToolResult(content=[unknown], is_error=True)
        words, started = command_line(tools[params.name], params.arguments or {}), time.monotonic()
        # -P: Python files in the folder are not imported.
        line = [sys.executable, "-P", "-m", "workbench", *words]
        process: Any = await anyio.open_process(line, stdin=subprocess.DEVNULL)

        async def follow() -> None:
            begun = ""  # a chunk may end within a line
            async for text in TextReceiveStream(process.stderr, errors="replace"):
                *lines, begun = (begun + text).split("\n")
                for said in filter(None, map(str.strip, lines)):
                    seconds = time.monotonic() - started
                    await context.session.report_progress(seconds, message=said)

        async with process:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(follow)
                    output = b"".join([part async for part in process.stdout])
                await process.wait()
            finally:  # cancelled: as after Ctrl-C, the command removes its files from a device
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with anyio.move_on_after(_LONGEST_END_S, shield=True):
                    await process.wait()
        try:
            record, text = json.loads(output), output.decode()
        except ValueError:  # it died before the end of its output
            record, text = None, f"the command crashed: {shlex.join(line)}"
        return types.CallToolResult(
            content=[types.TextContent(text=text)],
            structured_content=record,
            is_error=record is None or process.returncode != 0,
        )

    async def run() -> None:
        server = Server("workbench", on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    anyio.run(run)
