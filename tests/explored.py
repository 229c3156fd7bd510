"""The explorer's page, and the data in it."""

import functools
import json
import re
from pathlib import Path

import pytest
from recorded import recorded

import workbench as wb
from workbench.plugin import list_plugins

_DATA = re.compile(r'(<script type="application/json" id="explorer-data">)(.*?)(</script>)', re.S)


def read_data(source, **options):
    """What the explorer shows of a run or a comparison; skips the test without the plug-in."""
    if "explorer" not in list_plugins():
        pytest.skip("without explorer")
    return json.loads(_DATA.search(wb.explore(source, **options).text)[2])


def put_data(page, data):
    """The page with other data."""
    text = json.dumps(data).replace("<", "\\u003c")
    return _DATA.sub(lambda found: found[1] + text + found[3], page)


def download(page, item):
    """The file that an item of the menu saves, and its name."""
    page.get_by_role("button", name="Save as").click()
    with page.expect_download() as found:
        page.get_by_role("menuitem", name=item).click()
    return Path(found.value.path()), found.value.suggested_filename


@functools.cache
def document_of(model):
    """The explorer's document of a recorded run."""
    return read_data(recorded(model))


def by_key(document, measurement, column):
    """The values of a column by operator, without those that did not run."""
    keys = document["programs"][measurement["program"]]["keys"]
    return {key: value for key, value in zip(keys, column, strict=True) if value is not None}
