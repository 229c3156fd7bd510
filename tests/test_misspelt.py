"""Names and values that public functions, nouns and the package do not take: one line each."""

import pickle

import pytest
import torch

import workbench as wb

RUN = wb.open_run(wb.sample_run())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wb.profile("toy_cnn", efort="quick"), "profile(): unknown argument 'efort' -> did "
         "you mean 'effort'?"),
        (lambda: wb.export_model("toy_cnn", option=1), "did you mean 'options'?"),
        (lambda: wb.MeasureOptions(thread=(1,)), "MeasureOptions(): unknown argument 'thread' -> "
         "did you mean 'threads'?"),
        (lambda: RUN.compare(base="avx512_off"), "Run.compare(): unknown argument 'base'"),
        (lambda: wb.open_run(), "open_run(): missing a required argument: 'path' -> it takes path"),
        (lambda: wb.show(RUN, "layers", top="a"), "show(): top='a' is not an int, but str"),
        (lambda: wb.MeasureOptions(runs="5"), "runs='5' is not an int, but str"),
        (lambda: wb.profile("toy_cnn", None, wb.MeasureOptions()), "profile(): export= takes no "
         "MeasureOptions -> give it by its name: measure=MeasureOptions(...)"),
        (lambda: wb.export_model("toy_cnn", wb.ExportOptions()), "inputs= takes no ExportOptions"),
        (lambda: wb.ExportOptions(dtype=8), "dtype=8 is not a str, but int"),
        (lambda: wb.plot_categories(RUN, share=True), "did you mean 'shares'?"),
        (lambda: wb.show(RUN, "finding"), "unknown view 'finding' -> did you mean 'findings'?"),
        (lambda: wb.show(RUN.statistics, columns=["experimnt"]), "did you mean 'experiment'?"),
        (lambda: wb.profil, "workbench has no attribute 'profil' -> did you mean 'profile'?"),
        (lambda: RUN.subject.categorie, "Measurement has no attribute 'categorie' -> did you mean "
         "'categories'"),
        (lambda: RUN.compare().verdit, "Comparison has no attribute 'verdit' -> did you mean"),
    ],
)  # fmt: skip
def test_what_is_misspelt_or_of_another_type_is_one_line(call, words):
    with pytest.raises(wb.WorkbenchError) as caught:
        call()
    text = str(caught.value)
    assert words in text and "\n" not in text
    (shown, _) = caught.value._render_traceback_()
    assert shown.endswith(text), "a notebook shows one line, too"


def test_attributes_that_are_missing_are_missing():
    """As Python asks for them: `hasattr`, `getattr` with a default, and copies of the error."""
    assert not hasattr(RUN, "comparsions") and getattr(wb, "profil", 1) == 1
    with pytest.raises(AttributeError) as caught:
        _ = RUN.comparsions
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value)


def test_public_functions_stay_what_they_are():
    assert pickle.loads(pickle.dumps(wb.profile)) is wb.profile
    assert wb.profile.__name__ == "profile" and wb.MeasureOptions(runs=7).runs == 7


def test_a_module_of_a_library_is_called_by_its_class():
    with pytest.raises(wb.WorkbenchError, match=r"^Linear: forward\(\) fails on its inputs"):
        wb.load_model(torch.nn.Linear(4, 2), torch.ones(1, 3))
