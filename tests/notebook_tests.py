"""What every notebook is tested for: the core's, and those of plug-ins with the plug-in.

A class of tests of some notebooks derives from `NotebookTests`.
"""

import ast
import json
import re
import resource
import shutil
import time
from pathlib import Path

import papermill
import pytest
from etdump_builder import Block, Profile, build_etdump
from needed import NOTEBOOKS as OF_PLUGINS

import workbench as wb

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CORE = [path for path in NOTEBOOKS if path.name not in OF_PLUGINS]
#: The report is read last.
IN_ORDER = sorted(CORE, key=lambda path: path.stem == "16_report")
ANOTHER = re.compile(r"mobilenet|segmenter|AsTrained|smollm|\bTiny\b|unet", re.I)


def cells_of(path):
    cells = json.loads(path.read_text())["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def code_of(path):
    return [cell for cell in cells_of(path) if cell["cell_type"] == "code"]


def run_in_process(path, shown=None, **parameters):
    """Run all cells in this process: a second, not ten; returns the answer to the exercise.

    ``shown`` gets the texts of what cells display.
    """
    from IPython.core.interactiveshell import InteractiveShell

    shell, answer = InteractiveShell(), ""
    for cell in code_of(path):
        done = shell.run_cell(cell["source"])
        done.raise_error()
        if shown is not None and done.result is not None:
            shown.append(str(done.result))
        if "parameters" in cell["metadata"].get("tags", []):
            assert set(parameters) <= shell.user_ns.keys()
            shell.user_ns.update(parameters)
        if "solution" in cell["metadata"].get("tags", []):
            answer = str(done.result)
    return answer


def of_kinds(*kinds):
    return pytest.mark.parametrize("run_dir", kinds, indirect=True)


class NotebookTests:
    """Tests of the notebooks that ``answers`` names.

    ``answers`` have what the answer to the exercise is like on the recorded run; ``page`` has the
    table of the notebooks; those in ``fast`` run in the fast lane; those in ``of_one_run`` show
    nothing but the run that they are given; ``live`` has parameters with which some measure here.
    """

    answers: dict[str, str]
    page: Path
    fast: tuple[str, ...] = ()
    of_one_run: tuple[str, ...] = ()
    live: dict[str, dict[str, object]] = {}  # noqa: RUF012

    def pytest_generate_tests(self, metafunc):
        if "path" in metafunc.fixturenames:
            name = metafunc.function.__name__
            chosen = {
                "test_of_a_run_no_data_of_another_model_is_shown": self.of_one_run,
                "test_what_measures_live_takes_less_than_three_minutes": self.live,
            }.get(name, self.answers)
            timed = {
                "test_it_runs_in_process": {*chosen} - {*self.fast},
                "test_a_wrong_run_dir_is_an_error_of_one_line": {"10_on_a_device"},  # it exports
            }.get(name, ())
            cases = [
                pytest.param(
                    ROOT / "notebooks" / f"{stem}.ipynb",
                    marks=[pytest.mark.cases] * (stem in timed),
                    id=stem,
                )
                for stem in chosen
            ]
            metafunc.parametrize("path", cases)

    def test_the_page_lists_it_with_what_it_has(self, path):
        lines = self.page.read_text().splitlines()
        rows = [line.split(" | ") for line in lines if line.startswith(f"| [{path.stem}](")]
        (row,) = rows
        link = row[0].partition("](")[2].removesuffix(")")
        assert (self.page.parent / link).resolve() == path
        goal = re.search(r"\*\*Goal:\*\* (.+?)[:.,\n]", cells_of(path)[0]["source"])
        assert goal is None or goal[1].lower() in row[1].lower()
        code = "".join(cell["source"] for cell in code_of(path))
        widgets = set(re.findall(r"wb\.(pick\w*|explore)\b", code))
        assert widgets == set(re.findall(r"`(\w+)`", row[3]))
        driven = re.search(r"`explore`: .*selected", row[3])
        assert bool(driven) == bool(re.search(r"explorer\.draw\(", code))
        figures = set(re.findall(r"plot_(\w+)", code)) or {"the explorer's" if widgets else "none"}
        assert figures == set(row[4].split(", ")) or (row[4:5] == ["none"] and "pick" in widgets)
        assert row[2].isdecimal() and (row[5] != "none |") == ("**Exercise.**" in path.read_text())

    def test_it_has_a_goal_and_leads_to_the_next_one_of_the_core(self, path):
        if path == IN_ORDER[-1]:
            return
        later = [each for each in IN_ORDER[:-1] if each.stem > path.stem]
        following = (later or IN_ORDER[-1:])[0]
        assert "**Goal:** " in cells_of(path)[0]["source"]
        texts = [cell["source"] for cell in cells_of(path) if cell["cell_type"] == "markdown"]
        assert f"**Next:** [{following.stem}]({following.name})" in texts[-1]

    def test_title_is_first_then_parameters_then_imports(self, path):
        first, second, third = cells_of(path)[:3]
        assert first["source"].startswith("# ")
        assert second["metadata"]["tags"] == ["parameters"]
        lines = [line for line in third["source"].splitlines() if line]
        assert all(line.startswith(("import ", "from ")) for line in lines)
        assert len(lines) <= 3

    def test_every_parameter_is_an_annotated_literal_with_an_explanation(self, path):
        source = cells_of(path)[1]["source"]
        for node, line in zip(ast.parse(source).body, source.splitlines(), strict=True):
            assert isinstance(node, ast.AnnAssign), line
            ast.literal_eval(node.value)
            assert "  # " in line, line
        assert "headless" not in source

    def test_cells_are_few_and_short(self, path):
        code = code_of(path)
        assert len(code) <= (18 if path.stem == "16_report" else 10)
        for cell in code:
            assert len(cell["source"].splitlines()) <= 10, cell["source"]

    def test_logic_lives_in_the_package(self, path):
        own = r"sys\.path" if path.stem == "01_first_profile" else r"^\s*(def|class|!|%)\b"
        for cell in code_of(path):
            assert not re.search(rf"{own}|sys\.path|[\"']/", cell["source"], re.M)

    def test_what_a_view_uses_is_never_changed_below_it(self, path):
        """A control's view is called after all cells have run: it sees what names mean then."""
        used = set()
        for cell in code_of(path):
            tree = ast.parse(re.sub("(?m)^%.*", "", cell["source"]))
            names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
            assert not used & {name.id for name in names if isinstance(name.ctx, ast.Store)}
            for view in [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]:
                own = {node.arg for node in ast.walk(view.args) if isinstance(node, ast.arg)}
                inside = [node for node in ast.walk(view.body) if isinstance(node, ast.Name)]
                own |= {node.id for node in inside if isinstance(node.ctx, ast.Store)}
                used |= {node.id for node in inside} - own

    def test_exercises_have_a_folded_solution(self, path):
        exercise = any("**Exercise.**" in c["source"] for c in cells_of(path))
        solutions = [c for c in code_of(path) if "solution" in c["metadata"].get("tags", [])]
        assert len(solutions) == exercise
        for cell in solutions:
            assert cell["metadata"]["jupyter"] == {"outputs_hidden": True, "source_hidden": True}

    def test_it_is_stripped_and_keeps_its_kernel(self, path):
        notebook = json.loads(path.read_text())
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        for cell in code_of(path):
            assert cell["outputs"] == []
            assert cell["execution_count"] is None

    def test_it_runs_in_process(self, path, monkeypatch, tmp_path):
        monkeypatch.setenv("MPLBACKEND", "agg")
        monkeypatch.chdir(tmp_path)
        measures = path.stem == "00_check_setup"
        answer = run_in_process(path, **({"run_dir": str(wb.sample_run())} if measures else {}))
        assert re.search(self.answers[path.stem], answer), answer

    @pytest.mark.whole
    def test_of_a_run_no_data_of_another_model_is_shown(self, path, monkeypatch, tmp_path):
        monkeypatch.setenv("MPLBACKEND", "agg")
        monkeypatch.chdir(tmp_path)
        shown = []
        run_in_process(path, shown, run_dir=str(wb.sample_run("toy_cnn")))
        assert shown and not ANOTHER.search("".join(shown))

    def test_a_wrong_run_dir_is_an_error_of_one_line(self, path, monkeypatch, tmp_path):
        if path.stem == "00_check_setup":
            return
        monkeypatch.chdir(tmp_path)
        with pytest.raises(wb.WorkbenchError, match="no such file or folder") as caught:
            run_in_process(path, run_dir=str(tmp_path / "nowhere"))
        assert "\n" not in str(caught.value)

    @pytest.fixture(scope="class")
    def run_dir(self, request, tmp_path_factory):
        """A fresh run of ours, of an emulated CPU, with two thread counts, without evidence;
        another tool's; one trace; the trace of a single operator.
        """
        folder = tmp_path_factory.mktemp(request.param) / "run"
        if request.param == "fresh":
            short = wb.MeasureOptions(runs=5, processes=2)
            pte = wb.export_model("toy_cnn", root=folder).path
            return str(wb.measure(pte, options=short, root=folder).path)
        if request.param == "emulated":
            return str(wb.sample_run("toy_cnn"))
        if request.param == "threads":
            return str(wb.sample_run("unet_small"))
        if request.param == "operator":
            calls = (Profile("native_call__softmax.out", 0, 0, start=10, end=900),
                     Profile("OPERATOR_CALL", 0, 0, start=5, end=920))  # fmt: skip
            inference = Block(None, [*calls, Profile("Method::execute", end=1000)])
            folder.mkdir()
            (folder / "net.etdump").write_bytes(build_etdump([inference] * 4))
            return str(folder / "net.etdump")
        if request.param == "single":
            return str(next(wb.sample_run().glob("avx512_on/*_t1.etdump")))
        if request.param == "foreign":
            for side in ("off", "on"):
                trace = next((wb.sample_run() / f"avx512_{side}").glob("*_t1.etdump"))
                (folder / side).mkdir(parents=True)
                shutil.copy(trace, folder / side)
            return str(folder)
        shutil.copytree(wb.sample_run("vit_tiny"), folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(
            json.dumps(manifest | {"samplings": [], "export": None})
        )
        ceilings = [path.name for path in folder.glob("ceilings*")]
        for file in ("layers.json", "functions.json", *ceilings):
            (folder / file).unlink(missing_ok=True)
        return str(folder)

    @pytest.mark.cases
    @of_kinds("bare", "emulated", "foreign", "fresh", "operator", "single", "threads")
    def test_it_runs_on_other_runs_than_the_sample(self, path, run_dir, monkeypatch, tmp_path):
        monkeypatch.setenv("MPLBACKEND", "agg")
        monkeypatch.chdir(tmp_path)
        answer = run_in_process(path, run_dir=run_dir)
        assert re.search(r"Answer\s+[>|] ..", answer) or "**Exercise.**" not in path.read_text()

    @pytest.fixture
    def run_timed(self, tmp_path, monkeypatch, capsys):
        """Runs a notebook headless, and says how long it took; returns it and its CPU seconds.

        CPU time, that of the kernel's children included, for others may use the machine.
        """
        monkeypatch.chdir(tmp_path)

        def run(name, **parameters):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            output = tmp_path / f"{name}.ipynb"
            papermill.execute_notebook(
                ROOT / "notebooks" / f"{name}.ipynb",
                output,
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
            )
            wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            with capsys.disabled():
                print(f"\n{name:30} {wall:6.1f} s, {cpu:5.1f} s CPU  {parameters or ''}", end=" ")
            return json.loads(output.read_text())["cells"], cpu

        return run

    @pytest.mark.campaign
    def test_papermill_runs_it_with_defaults_within_a_minute(self, path, run_timed):
        cells, cpu = run_timed(path.stem)
        shown = [result.get("data", {}) for cell in cells for result in cell.get("outputs", [])]
        figures = [
            data
            for data in shown
            if "image/png" in data or 'title="Explorer"' in "".join(data.get("text/html", ""))
        ]
        assert figures or path.stem in ("00_check_setup", "02_export_a_model")  # they have tables
        assert cpu < 60

    @pytest.mark.campaign
    def test_what_measures_live_takes_less_than_three_minutes(self, path, run_timed):
        _, cpu = run_timed(path.stem, **self.live[path.stem])
        assert 1 < cpu < 180

    @pytest.mark.campaign
    @of_kinds("fresh", "emulated", "bare", "foreign", "single")
    def test_papermill_runs_it_on_every_kind_of_run(self, path, run_dir, run_timed):
        cells, cpu = run_timed(path.stem, run_dir=run_dir)
        assert not any("widget-view" in str(cell.get("outputs")) for cell in cells)
        assert cpu < 60
