"""Options of commands that measure little."""

#: Without samples, starts and peaks of the machine.
LATENCIES_ALONE = ["--measure", "evidence=no", "--measure", "cold_start=no", "--measure", "roof=no"]
