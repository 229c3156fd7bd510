"""The schema of configs is that of the code and of its page, and readers agree with it."""

from pathlib import Path

from schemas import Described, check_reader

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "workbench" / "plugins" / "kit"
DESCRIBED = Described(
    "config", FOLDER / "config.schema.json", ROOT / "data" / "docs" / "plugins" / "kit.md"
)


def test_the_published_schema_is_the_one_of_the_code():
    DESCRIBED.check_schema()


def test_the_page_has_its_keys():
    DESCRIBED.check_page(__file__)


def test_what_the_schema_refuses_the_reader_refuses_too(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    least = {"model": "net.pte", "experiments": [{"name": "on"}]}
    check_reader(DESCRIBED.validator, least, lambda file: cli("run", file))


if __name__ == "__main__":
    DESCRIBED.write_page()
