"""The ExecuTorch performance workbench."""
