"""The plug-ins that come with the workbench; the folder of each can be deleted."""
