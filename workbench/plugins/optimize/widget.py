"""The figure of an optimisation, whose dots can be clicked."""

from collections.abc import Mapping
from typing import Any

import anywidget
import traitlets

from workbench.api import Chart, Selector, show_note
from workbench.plugins.optimize.figure import DOT, plot_variants
from workbench.plugins.optimize.records import Study, Variant

_SCRIPT = """
export default {
  render({ model, el }) {
    el.innerHTML = model.get("drawing");
    const svg = el.querySelector("svg");
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", model.get("text"));
    svg.style.cssText = "width: 100%; height: auto; max-width: 990px; background: white";
    svg.style.pointerEvents = "none";  // an interval lies on its dot
    const dots = Object.entries(model.get("names")).flatMap(([name, words]) => {
      const id = model.get("prefix") + name;
      const dot = [...svg.querySelectorAll("g[id]")].find((group) => group.id === id);
      return dot ? [{ dot, name, words }] : [];
    });
    const mark = () => dots.forEach(({ dot, name }) => {
      const is_picked = name === model.get("name");
      dot.setAttribute("aria-pressed", is_picked);
      dot.style.filter = is_picked ? "drop-shadow(0 0 4px #C8401F)" : "";
    });
    for (const { dot, name, words } of dots) {
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = words;
      dot.prepend(title);
      dot.setAttribute("role", "button");
      dot.setAttribute("tabindex", "0");
      dot.setAttribute("aria-label", words);
      dot.style.cssText = "cursor: pointer; pointer-events: all";
      const pick = () => { model.set("name", name); model.save_changes(); };
      dot.addEventListener("click", pick);
      dot.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); }
      });
    }
    model.on("change:name", mark);
    mark();
  },
};
"""


class VariantPicker(Selector, anywidget.AnyWidget):
    """Latency against SQNR, one dot per variant; ``selected`` is the one that was clicked."""

    _esm = _SCRIPT
    drawing = traitlets.Unicode("").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
    prefix = traitlets.Unicode(DOT).tag(sync=True)
    names = traitlets.Dict().tag(sync=True)
    name = traitlets.Unicode("").tag(sync=True)

    def __init__(self, study: Study):
        self._study, self._chart = study, plot_variants(study)
        measured = [v for v in study.variants if v.latency_ms is not None]
        first = study.best or (measured[0].name if measured else "")
        super().__init__(
            drawing=self.hidden + _draw(self._chart),
            text=self._chart.alt_text, name=first,
            names={v.name: f"{v.name}: {v.change}" for v in measured},
            selected=study[first] if first else None,
        )  # fmt: skip

    @traitlets.observe("name")
    def _select(self, change: Mapping[str, Any]) -> None:
        variants = {variant.name: variant for variant in self._study.variants}
        self.selected: Variant | None = variants.get(change["new"])

    def _ipython_display_(self) -> None:
        self.show(self._chart)


def pick_variant(study: Study | None) -> Selector:
    """The figure of `plot_variants`, in which a dot is picked by a click or by Enter.

    ``selected`` is the variant, the recommended one at first; ``draw`` draws a view of it in
    another cell. Without a live front end, it is the figure alone.

    Examples
    --------
    >>> study = wb.read_study(wb.sample_file("out_squeezesam"))
    >>> wb.pick_variant(study).selected.name == study.best
    True
    """
    return VariantPicker(study) if study else Nothing()


class Nothing(Selector):
    """What is shown without a study: there is nothing to pick."""

    def _repr_html_(self) -> str:
        return show_note("No search is recorded beside this run: `workbench optimize MODEL`.").html


def _draw(chart: Chart) -> str:
    """The figure as an element of a page."""
    return chart.to_svg(turns=False).partition('dtd">')[2]
