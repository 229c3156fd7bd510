"""Time from the start of the native runner to the end of its first inference.

Measured by the parent process, including process creation. Exits 1 if the median is above 60 ms.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import workbench as wb

MAX_MS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="toy_cnn")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()

    runner = wb.find_runner()
    totals, own, loads, inferences = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        pte = wb.export_model(options.model, root=Path(folder)).path
        flags = ["--model_path", str(pte), "--cpu_threads", "1"]
        for _ in range(options.repeats):
            start = time.perf_counter()
            with runner.open(flags, timeout_s=60) as session:
                inferences.append(session.run(1).wall_ns[0] / 1e6)
                totals.append(1000 * (time.perf_counter() - start))
                own.append(session.ready.startup_ms)
                loads.append(session.ready.load_ms)
    median = statistics.median(totals)
    print(
        f"{options.model}, {options.repeats} starts: first inference done after {median:.1f} ms "
        f"(median; fastest {min(totals):.1f}); start-up {statistics.median(own):.1f}, "
        f"loading {statistics.median(loads):.1f}, inference {statistics.median(inferences):.1f}"
    )
    return 0 if median <= MAX_MS else 1


if __name__ == "__main__":
    sys.exit(main())
