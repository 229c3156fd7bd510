"""The schema of configs is that of the code, and readers agree with it."""

from pathlib import Path

from schemas import Described, check_reader

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "workbench" / "plugins" / "kit"
DESCRIBED = Described("config", FOLDER / "config.schema.json")


def test_the_published_schema_is_the_one_of_the_code():
    DESCRIBED.check_schema()


def test_what_the_schema_refuses_the_reader_refuses_too(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    least = {"model": "net.pte", "experiments": [{"name": "on"}]}
    check_reader(DESCRIBED.validator, least, lambda file: cli("run", file))
