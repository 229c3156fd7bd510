"""The notebooks: short, stripped, headless, and of one form."""

import re

import pytest
from notebook_tests import CORE, NOTEBOOKS, ROOT, NotebookTests, cells_of, run_in_process


class TestCore(NotebookTests):
    answers = {  # noqa: RUF012
        "00_check_setup": r"\w+ hides \w+, \w+",
        "01_first_profile": r"(Convolution|Elementwise): \+\d+ points of its share, [+-]0\.\d+ ms",
        "02_export_a_model": r"(fp16|int8)( \w+)? leaves out \w+::\S+: [1-9]\d* of them",
        "03_run_an_ab_experiment": r"(0\.9|1\.0)\d+x, with nothing changed",
        "04_read_a_trace": r"> [1-9]\.\d %",
        "05_categories_and_the_ledger": r"[1-9]\d % of the time: at most \d+\.\dx",
        "06_bottleneck_shift": r"by more than 1\.\d\dx",
        "07_drill_down_to_layers": r"2 threads \| .*0\.\d\dx",
        "08_kernel_evidence": r"not delegated|no microkernel",
        "09_what_if_and_roofline": r"must become 1\.\d times as fast",
        "10_on_a_device": r"sme2: [1-9]\d\.\d % of the samples",
        "11_onboard_your_model": r"my_segmenter.py:\d+: [1-9]\d % of the inference",
        "16_report": "",
    }
    page = ROOT / "notebooks" / "README.md"
    fast = ("04_read_a_trace",)
    of_one_run = (
        *("02_export_a_model", "05_categories_and_the_ledger", "06_bottleneck_shift"),
        *("07_drill_down_to_layers", "09_what_if_and_roofline", "11_onboard_your_model"),
    )
    live = {  # noqa: RUF012
        "01_first_profile": {"live": True},
        "02_export_a_model": {"model": "toy_cnn", "dtypes": "fp32,int8"},
        "03_run_an_ab_experiment": {"live": True},
        "11_onboard_your_model": {"model": "toy_cnn"},
    }

    def test_each_is_tested_in_the_order_of_the_list(self):
        rows = re.findall(r"^\| \[(\w+)\]", self.page.read_text(), re.M)
        assert rows == sorted(self.answers) == [path.stem for path in CORE]

    def test_all_together_have_few_cells(self):
        assert sum(len(cells_of(path)) for path in NOTEBOOKS) <= 240


@pytest.mark.whole
def test_what_notebooks_add_up_is_the_inference(monkeypatch, tmp_path):
    """Of a run of several processes, whose inferences have the same numbers."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    trace, categories = (path for path in CORE if path.stem[:2] in ("04", "05"))
    shown = []
    run_in_process(categories, shown)
    added, latency = re.search(r"Sum: (\S+) ms. Latency: (\S+) ms", "".join(shown)).groups()
    assert added == latency
    run_in_process(trace, shown)
    told = re.search(
        r"Method::execute: (\S+) ms. Ledger: (\S+) ms. All rows: (\S+) ms", "".join(shown)
    )
    assert told and told[1] == told[2] != told[3]


def test_terms_are_explained_in_notebooks_that_exist():
    texts = [path.read_text() for path in CORE if path.stem == "16_report"]
    texts += [path.read_text() for path in (ROOT / "workbench/plugins").glob("*/web/src/main.js")]
    numbers = re.findall(r"\((\d\d)\)\\n|notebook (\d\d)\"", "".join(texts))
    assert len(numbers) > 5
    assert {"".join(pair) for pair in numbers} <= {path.name[:2] for path in CORE}
