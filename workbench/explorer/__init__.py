"""Interactive views: timeline, pickers, live runs."""
