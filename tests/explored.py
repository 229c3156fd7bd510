"""The explorer's page, and the data in it."""

import json
import re

import workbench as wb

_DATA = re.compile(r'(<script type="application/json" id="explorer-data">)(.*?)(</script>)', re.S)


def read_data(source, **options):
    """What the explorer shows of a run or a comparison."""
    return json.loads(_DATA.search(wb.explore(source, **options).text)[2])


def put_data(page, data):
    """The page with other data."""
    text = json.dumps(data).replace("<", "\\u003c")
    return _DATA.sub(lambda found: found[1] + text + found[3], page)
