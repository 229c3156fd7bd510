"""The model of notebook 11: ready for a device, it computes what it was trained to."""

import importlib.util

import pytest
from needed import needs
from recorded import recorded

import workbench as wb

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location("my_segmenter", wb.sample_file("my_segmenter.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.whole
def test_ready_takes_raw_images_and_gives_the_same_mask(models):
    image = torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (models.MEAN, models.STD))
    with torch.no_grad():
        trained = models.AsTrained().eval()((image - mean) / std)
        ready = models.Ready().eval()(image)
    torch.testing.assert_close(ready, trained, atol=1e-5, rtol=1e-5)


@needs("remedies")
def test_the_recorded_pair_shows_what_the_repairs_bring():
    """What notebook 11 says of the two: half of the time, and what takes most of the rest."""
    before, after = (recorded(name) for name in ("AsTrained", "Ready"))
    partitions = [run.record.export.partition for run in (before, after)]
    left = [sum(part.count for part in parts if not part.delegated) for parts in partitions]
    assert left[0] > 5 * left[1]
    times = [run.statistics.set_index("experiment").loc["avx512_on"] for run in (before, after)]
    assert times[0]["low"] > 1.9 * times[1]["high"]
    rest = after.findings.iloc[0]
    assert (rest["remedy"], rest["basis"]) == ("attention", "checked") and rest["share"] > 0.5
    gains = [run.comparisons[0].latency["speedup"].iloc[0] for run in (before, after)]
    assert gains[1] > gains[0]
    operators = before["avx512_on", 1].operators
    lines = operators.groupby("source")["share"].sum()
    assert "interpolate(" in line_of(lines.idxmax())


def line_of(source):
    number = int(source.rpartition(":")[2])
    return wb.sample_file("my_segmenter.py").read_text().splitlines()[number - 1]
