"""Exports and runs of made-up models, which are told apart by their traced graphs."""

import hashlib
from dataclasses import fields

from recorded import recorded
from run_folder import write_run

#: What makes a run that tests only read for its latencies quick to write.
BRIEF = {"rounds": 2, "traced": 1}
_EXPORT = type(recorded().record.export)


def exported(dtype="fp32", partition=(), **changes):
    """The export record of a program."""
    names = {each.name: "" for each in fields(_EXPORT) if each.type == "str" or each.type is str}
    names |= {"dtype": dtype, "partition": tuple(partition), "inputs": (), "outputs": ()}
    names |= {"undelegated": (), "delegates": {}, "versions": {}, "options": {}, "fidelity": ()}
    return _EXPORT(**names | {"size_bytes": 0, "seconds": 0.0} | changes)


def net(graph, dtype="fp32", **changes):
    """The export of one of several classes that are called Net, in one folder."""
    sha256 = hashlib.sha256(repr([graph, dtype, changes]).encode()).hexdigest()
    facts = {"model": "Net", "pte": f"Net_xnnpack_{dtype}.pte", "sha256": sha256}
    facts |= {"graph": graph, "backend": "xnnpack", "size_bytes": 1000}
    return exported(dtype, **facts | changes)


def put(folder, name, export, ms, **options):
    """Write a run of an export beside others."""
    return write_run(folder / "runs" / name, {"on": ms}, export=export, **BRIEF | options)
