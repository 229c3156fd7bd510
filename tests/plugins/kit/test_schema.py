"""The schema of configs is that of the code and of its page, and readers agree with it."""

import json
from pathlib import Path

import jsonschema
from schemas import check_reader, describe_keys

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "workbench" / "plugins" / "kit" / "config.schema.json"
PAGE = ROOT / "data" / "docs" / "plugins" / "kit.md"
HEADING = "## Keys of a config\n"


def test_the_published_schema_is_the_one_of_the_command(cli):
    code, printed, _ = cli("schema", "config")
    assert code == 0 and "config" in cli("schema")[1].split()
    assert printed == SCHEMA.read_text(), f"workbench schema config > {SCHEMA}"
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


def test_the_page_has_its_keys():
    table = describe_keys(json.loads(SCHEMA.read_text()), "###")
    assert PAGE.read_text().partition(HEADING)[2] == table, (
        f"PYTHONPATH=tests python {__file__} writes it"
    )


def test_what_the_schema_refuses_the_reader_refuses_too(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    least = {"model": "net.pte", "experiments": [{"name": "on"}]}
    check_reader(validator, least, lambda file: cli("run", file))


if __name__ == "__main__":
    table = describe_keys(json.loads(SCHEMA.read_text()), "###")
    PAGE.write_text(PAGE.read_text().partition(HEADING)[0] + HEADING + table)
