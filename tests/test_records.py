import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.records.codec import from_json, to_json
from workbench.records.runs import Batch, Plan, Session

times = st.lists(st.integers(0, 2**62), max_size=5).map(tuple)
batches = st.builds(
    Batch, st.integers(0, 99), st.integers(0, 99), wall_ns=times, cpu_ns=times, preempted=times
)
sessions = st.builds(
    Session,
    experiment=st.text(),
    threads=st.integers(1, 64),
    process=st.integers(0, 9),
    traced=st.booleans(),
    masked=st.lists(st.text()).map(tuple),
    load_ms=st.floats(0, 1e6),
    startup_ms=st.floats(0, 1e6),
    batches=st.lists(batches, max_size=3).map(tuple),
)


@given(sessions)
def test_a_record_survives_json(session):
    assert from_json(Session, to_json(session), "x") == session


def test_numbers_stand_on_one_line_each_list():
    text = to_json(Batch(0, 1, (1, 2, 3), (4,), ()))
    assert '"wall_ns": [ 1, 2, 3 ]' in text


SESSION = json.loads(to_json(Session("a", 1, 0, False, (), 1.0, 2.0, ())))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"thread": 2}, UsageError, "unknown key 'thread' -> did you mean 'threads'?"),
        ({"threads": "many"}, StoreError, "expected int: $.threads"),
        ({"batches": 3}, StoreError, "$.batches"),
        ({"schema_version": 99}, StoreError, "schema version 99"),
    ],
)
def test_a_bad_record_is_one_clear_line(change, error, words):
    with pytest.raises(error) as caught:
        from_json(Session, json.dumps(SESSION | change), "manifest.json")
    assert words in str(caught.value)
    assert str(caught.value).startswith("manifest.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["experiment", "batches"])
def test_a_missing_key_is_named(key):
    data = {k: v for k, v in SESSION.items() if k != key}
    with pytest.raises(StoreError, match=f"required field missing: \\$.{key}"):
        from_json(Session, json.dumps(data), "x")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from([*SESSION, "x"]), json_values))
def test_any_json_is_a_record_or_an_error_of_ours(change):
    try:
        from_json(Session, json.dumps(SESSION | change), "x")
    except WorkbenchError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_text_that_is_no_record(text):
    with pytest.raises(StoreError):
        from_json(Plan, text, "x")
