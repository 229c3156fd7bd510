"""A rule about what depends only on inputs that stay between calls."""

from collections.abc import Collection, Iterator

from workbench.analysis.findings import commands, gains
from workbench.analysis.findings.finding import Finding, Gain
from workbench.analysis.run import Measurement
from workbench.records.exports import Cone, Rewrite
from workbench.wording import format_range, format_share

#: The share of the time from which a guess is told.
_LEAST_GUESS = 0.05


def find_staying(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Work that depends only on inputs that stay between calls: named by the user, or guessed."""
    named = m.run.record.plan.constant
    wanted = named or (m.export.staying if m.export else ())
    inputs = [name for name in wanted if name.isidentifier()]  # a record may be a stranger's
    if not inputs or m.export is None or m.phase.method not in ("", "forward"):
        return
    cones = [cone for cone in m.export.dependence if _is_within(cone, inputs)]
    fixed = {node for cone in cones for node in cone.nodes if not cone.inputs}
    nodes = [node for cone in cones for node in cone.nodes if cone.inputs]
    keys = _list_rows(m, {*nodes}, fixed)
    keys += gains.call_keys(m, keys)
    if not keys:
        return
    spent = gains.time_spent(m, keys)
    share = gains.share_of(m, spent.ms)
    if not (named or m.emulated) and share < _LEAST_GUESS:
        return
    names = " and ".join(f"`{name}`" for name in inputs)
    part = "these operators depend"
    if not m.emulated:
        ms, whole = format_range(spent.ms, m.latency_ms)
        part = f"{ms} of {whole} ({format_share(share)}) depend"
    guess = step = command = ""
    if not named:
        guess = ", which may stay between calls: a guess"
        step = f", if {names} stay{'s' * (len(inputs) == 1)} while others change"
        command = commands.write_command(m, "profile", constant=tuple(inputs))
    text = f"without what depends on {names} only"
    yield Finding(
        f"{part} on {names} only{guess}",
        Gain(spent.ms, spent.low, spent.high, "removal"),
        keys,
        f"compute it once, and pass the results: `wb.split` makes both programs{step}",
        f"parts = wb.split(net, inputs, constant={tuple(inputs)})\n"
        f"between = parts.once({', '.join(inputs)})\n"
        "outputs = parts.each(others, *between)  # for each call; others: the inputs that change\n"
        "wb.profile([parts.once, parts.each]).conversation  # first call, further ones",
        command,
        remedy=Rewrite.SPLIT,
        rewrite=Rewrite(Rewrite.SPLIT, text, tuple(nodes), 0.0, None, parts=(tuple(nodes),)),
    )


def _is_within(cone: Cone, inputs: Collection[str]) -> bool:
    """Whether operators depend on these inputs at most."""
    return {*cone.inputs} <= {*inputs} and not (cone.buffers or cone.random)


def _list_rows(m: Measurement, nodes: set[str], fixed: set[str]) -> list[str]:
    """The rows that execute some of these operators and, beside them, only fixed ones."""
    rows = m.traced_nodes.items()
    return [key for key, names in rows if names & nodes and names <= nodes | fixed]
