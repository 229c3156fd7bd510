"""JSON Schemas of what people write by hand: are they those of the code, do readers agree?"""

import contextlib
import io
import json
import runpy
import warnings
from pathlib import Path
from unittest import mock

import jsonschema


class Described:
    """A published schema, which is made from the code."""

    def __init__(self, module, schema):
        self.module, self.schema = module, schema

    @property
    def validator(self):
        return jsonschema.Draft202012Validator(json.loads(self.schema.read_text()))

    def check_schema(self):
        """Assert that the file is that of the code."""
        hint = f"python -m {self.module} > {self.schema}"
        printed = run_module(self.module)
        assert printed == self.schema.read_text(), hint
        jsonschema.Draft202012Validator.check_schema(json.loads(printed))


def run_module(name):
    """What ``python -m`` prints of a module."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as said,
        mock.patch("sys.argv", [name]),
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),  # it is imported
    ):
        runpy.run_module(name, run_name="__main__")
    return said.getvalue()


def check_reader(validator, least, read):
    """Assert that a reader of files refuses what the schema does, and knows each of its keys."""

    def try_reading(content):
        Path("x.json").write_text(json.dumps(content))
        return read("x.json")

    keys = validator.schema["$defs"][validator.schema["title"].title()]["properties"]
    assert not validator.is_valid({}) and try_reading({})[0] in (1, 2)
    for key in keys.keys() - {"analysis"}:
        wrong = {**least, key: {"a": [1]}}
        assert not validator.is_valid(wrong), key
        code, _, err = try_reading(wrong)
        assert code in (1, 2) and "unknown key" not in err, key
    told = try_reading({**least, "modles": 1})[2]
    assert "unknown key" in told and "did you mean 'model" in told
