"""Plug-in: the playbooks' steps for agents, over the Model Context Protocol."""

from workbench.api import Plugin

PLUGIN = Plugin(commands={"mcp": "workbench.plugins.mcp.server:mcp"})
