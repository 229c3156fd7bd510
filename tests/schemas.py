"""JSON Schemas of what people write by hand: tables of keys, and whether readers agree."""

import json
import re
from pathlib import Path

import jsonschema

from workbench.records.documents import describe_document


def describe_keys(schema, level):
    """The tables of the keys of a document and of its parts, under headings of a level."""
    text = ""
    for title, record in schema["$defs"].items():
        part = f"A part of a {schema['title']}."
        text += f"\n{level} {title}\n\n{record.get('description', part)}\n\n"
        text += "| key | is | meaning |\n| --- | --- | --- |\n"
        for key, value in record["properties"].items():
            needed = " (needed)" if key in record["required"] else ""
            meaning = value.get("description", "").replace("|", "\\|")
            meaning = re.sub("--[a-z-]+", r"`\g<0>`", meaning)
            text += f"| `{key}` | {kind_of(value)}{needed} | {meaning} |\n"
    return text


def kind_of(value):
    """What a key takes, in words."""
    if "anyOf" in value:
        return " or ".join(map(kind_of, value["anyOf"]))
    if value.get("type") == "array":
        if "prefixItems" in value:
            return f"[{', '.join(map(kind_of, value['prefixItems']))}]"
        return f"list of {kind_of(value['items'])}"
    return value.get("type") or value["$ref"].rpartition("/")[2]


class Described:
    """A published schema and the section of a page that has its keys, both made from the code."""

    def __init__(self, name, schema, page):
        self.name, self.schema, self.page = name, schema, page
        self.heading = f"## Keys of a {name}\n"

    @property
    def validator(self):
        return jsonschema.Draft202012Validator(json.loads(self.schema.read_text()))

    def check_schema(self):
        """Assert that the file is that of the code."""
        printed = json.dumps(describe_document(self.name), indent=1) + "\n"
        hint = f"python -m workbench.records.documents {self.name} > {self.schema}"
        assert printed == self.schema.read_text(), hint
        jsonschema.Draft202012Validator.check_schema(json.loads(printed))

    def check_page(self, writer):
        """Assert that the page has the keys; ``writer`` is the file that writes it."""
        keys = self.page.read_text().partition(self.heading)[2]
        assert keys == self._describe(), f"PYTHONPATH=tests python {writer} writes it"

    def write_page(self):
        """Write the keys into the page."""
        before = self.page.read_text().partition(self.heading)[0]
        self.page.write_text(before + self.heading + self._describe())

    def _describe(self):
        return describe_keys(json.loads(self.schema.read_text()), "###")


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
