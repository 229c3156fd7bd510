"""Which side of a comparison is the baseline: by names, by what ran, by order, or as asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import UsageError
from workbench.run.plan import BY_ORDER, pair_experiments


def sides(names, **options):
    pairs, how = pair_experiments(names.split(), **options)
    return " ".join(f"{pair.baseline}>{pair.candidate}" for pair in pairs), how


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        ("mac_sme2_on mac_sme2_off", "mac_sme2_off>mac_sme2_on"),
        ("android_sme2_on android_sme2_off", "android_sme2_off>android_sme2_on"),
        ("a_on a_off b_on b_off", "a_off>a_on b_off>b_on"),
        ("sme2 nosme2", "nosme2>sme2"),
        ("sme2 no_sme2", "no_sme2>sme2"),
        ("sme2on sme2off", "sme2off>sme2on"),
        ("Sme2On Sme2Off", "Sme2Off>Sme2On"),
        ("with-sve without-sve", "without-sve>with-sve"),
        ("sme2 baseline sve2", "baseline>sme2 baseline>sve2"),
        ("mac-arm64 mac-arm64-sme2-off", "mac-arm64-sme2-off>mac-arm64"),
        ("sme2_on generic", "generic>sme2_on"),
        ("all no_sme no_sve", "no_sme>all no_sve>all"),
    ],
)
def test_names_say_where_the_extension_is_off(names, pairs):
    found, how = sides(names)
    assert found == pairs
    assert how.endswith(", by name")


@pytest.mark.parametrize(
    "names", ["b a", "north node", "deit_base_x deit_base_y", "base_1_off base_2_off", "x_on y_on"]
)
def test_names_that_say_nothing_leave_the_order(names):
    first, second = names.split()
    assert sides(names) == (f"{first}>{second}", BY_ORDER)


def test_what_ran_decides_after_names_and_a_choice_before_them():
    lacking = {"lacking": ["b"], "shown": "b, by its kernels"}
    assert sides("a b c", **lacking) == ("b>a b>c", "b, by its kernels")
    assert sides("a_off b", **lacking) == ("a_off>b", "a_off, by name")
    assert sides("a_off b", baseline="b", **lacking)[0] == "b>a_off"
    assert sides("a b", lacking=["a", "b"], shown="neither") == ("a>b", BY_ORDER)
    with pytest.raises(UsageError, match="unknown experiment 'x' -> valid: a, b"):
        sides("a b", baseline="x")


NAMES = st.lists(
    st.text("abno_f2 Sme", min_size=1, max_size=8) | st.sampled_from(["on", "off", "no", "base"]),
    min_size=1, max_size=6, unique=True,
)  # fmt: skip


@given(NAMES, st.sets(st.integers(0, 5)))
def test_every_experiment_is_compared_and_never_with_itself(names, lacking):
    pairs, how = pair_experiments(names, lacking=[names[i] for i in lacking if i < len(names)])
    assert how is not None
    compared = {name for pair in pairs for name in (pair.baseline, pair.candidate)}
    assert compared == (set(names) if len(names) > 1 else set())
    assert not {pair.baseline for pair in pairs} & {pair.candidate for pair in pairs}
