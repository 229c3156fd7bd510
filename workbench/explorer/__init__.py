"""The explorer: one page per run, as a file and as a widget, and lists to pick runs from."""
