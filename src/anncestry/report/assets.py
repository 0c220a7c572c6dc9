"""The page's own style and script, inlined so that it needs nothing else; plain strings, without data."""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark; --ground: #fdfdfb; --raised: #ffffff; --ink: #1c2127; --soft: #59636e; --line: #d5d8dc;
  --faint: #eef0f1; --link: #0b5a8f; --warn: #9a3412; --warn-ground: #fdf1ea; --mark: #fff3c4; --serif: Charter,
  "Bitstream Charter", "Sitka Text", Cambria, Georgia, "DejaVu Serif", serif; --sans: system-ui, -apple-system,
  "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; --mono: ui-monospace, "SF Mono", "Cascadia Mono",
  Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --raised: #1d2126; --ink: #e3e6e9; --soft: #a0a9b3; --line: #3a4149; --faint: #22272d;
    --link: #7cc0f0; --warn: #fdba8c; --warn-ground: #33221a; --mark: #4a3f14;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) {
  html { scroll-behavior: auto; }
}
body { margin: 0; background: var(--ground); color: var(--ink); font: 1.0625rem/1.6 var(--serif); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--raised); padding: .5rem; }
header, main, footer { max-width: 76rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 3rem); }
header { padding-top: clamp(1.5rem, 5vw, 4rem); }
h1 {
  font-size: clamp(1.6rem, 1.1rem + 2.2vw, 2.4rem); line-height: 1.2; font-weight: 600; margin: 0 0 1.25rem;
  max-width: 24em; text-wrap: balance; overflow-wrap: anywhere;
}
h2 { font-size: 1.4rem; font-weight: 600; margin: 4rem 0 1rem; padding-top: .6rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.1rem; font-weight: 600; margin: 2rem 0 .25rem; }
h4 { font: 600 .875rem/1.4 var(--sans); margin: 0 0 .25rem; overflow-wrap: anywhere; }
p, li, dd { max-width: 44em; }
p { margin: .5rem 0; }
a { color: var(--link); text-underline-offset: .2em; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 2px; }
.eyebrow, nav, .facts, .legend, .downloads { font: .875rem/1.5 var(--sans); color: var(--soft); }
.eyebrow { margin: 0 0 .4rem; letter-spacing: .01em; }
.note { color: var(--soft); font-size: .95rem; }
.lede { font-size: 1.125rem; }
nav { margin: 1.75rem 0 0; padding: .6rem 0; border-block: 1px solid var(--line); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; list-style: none; margin: 0; padding: 0; }
nav a { text-decoration: none; display: inline-block; padding-block: .2rem; }
nav a:hover { text-decoration: underline; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 11.5rem), 1fr)); gap: .75rem 2rem; margin:
  1.5rem 0 0;
}
.facts dt { font-weight: 400; }
.facts dd { margin: 0; color: var(--ink); overflow-wrap: anywhere; }
.legend {
  display: flex; flex-wrap: wrap; gap: .15rem 1.25rem; margin: .35rem 0 .75rem; padding: 0; list-style: none;
}
.sign { color: var(--c); margin-right: .4em; }
.panels {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.25rem 2.5rem;
}
figure { margin: 0 0 1rem; }
.panel { min-width: 0; }
.chart { width: 100%; min-height: 4rem; }
div.chart.vega-embed { width: 100%; padding: 0; display: block; color: var(--ink); }
.chart svg { display: block; }
.chart details { margin: 0; }
div.chart.vega-embed summary { opacity: 0; top: -1.75rem; }
div.chart.vega-embed:hover summary, div.chart.vega-embed summary:focus-visible, div.chart.vega-embed [open] summary
{
  opacity: .7;
}
@media (hover: none) {
  div.chart.vega-embed summary { opacity: .4; }
}
.chart .mark-symbol path, .chart .mark-rect path { cursor: pointer; }
.scroll {
  overflow-x: auto; margin: .75rem 0 .5rem; padding-bottom: .25rem; overscroll-behavior-x: contain; background:
  linear-gradient(90deg, var(--ground) 30%, transparent) 0 0 / 2.5rem 100% no-repeat local, linear-gradient(270deg,
  var(--ground) 30%, transparent) 100% 0 / 2.5rem 100% no-repeat local, linear-gradient(90deg, rgb(0 0 0 / .14),
  transparent) 0 0 / .7rem 100% no-repeat scroll, linear-gradient(270deg, rgb(0 0 0 / .14), transparent) 100% 0 /
  .7rem 100% no-repeat scroll;
}
table {
  border-collapse: collapse; font: .875rem/1.4 var(--sans); font-variant-numeric: tabular-nums lining-nums;
  min-width: 60%;
}
caption { text-align: left; padding: 0 0 .6rem; font: .95rem/1.5 var(--serif); color: var(--soft); }
caption b { color: var(--ink); font-size: 1.05rem; }
caption .words {
  display: block; max-width: min(46em, 100vw - 2 * clamp(1rem, 4vw, 3rem)); position: sticky; left: 0;
}
thead { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); }
tbody { border-bottom: 1.5px solid var(--ink); }
th, td { padding: .35rem .8rem; vertical-align: top; }
th:first-child, td:first-child { padding-left: .1rem; }
th { text-align: left; font-weight: 500; }
thead th { color: var(--ink); vertical-align: bottom; font-weight: 600; }
thead th.of { font-weight: 400; white-space: nowrap; }
thead th[colspan] { border-bottom: 1px solid var(--line); }
th.n, td.n { text-align: right; }
td.n { white-space: nowrap; }
thead th.n[colspan] { text-align: center; }
tbody tr + tr > * { border-top: 1px solid var(--faint); }
tbody th { font-weight: 400; white-space: nowrap; }
.unit { font-weight: 400; color: var(--soft); white-space: nowrap; }
.num, .name { white-space: nowrap; }
.num { color: inherit; text-decoration: underline dotted var(--soft) 1px; text-underline-offset: .25em; }
.num:hover { color: var(--link); text-decoration-style: solid; }
.num:target, .num.open { background: var(--mark); }
.best .num { font-weight: 700; }
.absent .num, .absent { color: var(--warn); font-style: italic; }
.published { display: block; color: var(--soft); font-size: .8125rem; font-style: normal; }
code, .mono { font: .8125rem/1.45 var(--mono); overflow-wrap: anywhere; }
.tables + .tables { margin-top: 2.25rem; }
.sheet td, .sheet th { max-width: 34rem; white-space: normal; overflow-wrap: break-word; }
.sheet td { min-width: 11rem; }
.tight td { min-width: 0; }
.records td.path { min-width: 24rem; }
.invalid {
  border-left: 3px solid var(--warn); background: var(--warn-ground); padding: .6rem 1.1rem; margin: 1rem 0;
  list-style: none;
}
.invalid li { overflow-wrap: anywhere; }
.invalid li + li { margin-top: .75rem; }
details { margin: 1rem 0; }
section > details > summary { cursor: pointer; font: .9375rem/1.5 var(--sans); color: var(--link); }
dl.words dt { font-weight: 600; margin-top: .9rem; }
dl.words dd { margin: 0; }
footer { margin-top: 4rem; padding-bottom: 4rem; color: var(--soft); font-size: .9rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
#why {
  position: fixed; inset: auto; margin: 0; width: min(31rem, calc(100vw - 2rem)); max-height: min(34rem, 80vh);
  overflow: auto; padding: 1rem 1.1rem 1.1rem; border: 1px solid var(--line); border-radius: 4px; background:
  var(--raised); color: var(--ink); box-shadow: 0 8px 30px rgb(0 0 0 / .18); font: .875rem/1.5 var(--sans);
}
#why::backdrop { background: transparent; }
#why h2 {
  all: unset; display: block; font: 600 1.25rem/1.3 var(--sans); font-variant-numeric: tabular-nums; margin-right:
  2rem;
}
#why h3 { all: unset; display: block; font: 600 .8125rem/1.4 var(--sans); color: var(--soft); margin: .9rem 0 .2rem; }
#why dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .9rem; margin: .5rem 0 0; }
#why dt { color: var(--soft); }
#why dd { margin: 0; overflow-wrap: anywhere; }
#why ol { list-style: none; margin: 0; padding: 0 0 0 .9rem; border-left: 1.5px solid var(--line); }
#why li { margin: .45rem 0; }
#why li span { color: var(--soft); }
#why li > * { display: block; }
#why hr { border: 0; border-top: 1px solid var(--line); margin: 1rem 0; }
#why button {
  position: absolute; top: .6rem; right: .6rem; width: 2rem; height: 2rem; border: 0; border-radius: 4px;
  background: none; color: var(--soft); font: 1.25rem/1 var(--sans); cursor: pointer;
}
#why button:hover { background: var(--faint); color: var(--ink); }
@media (max-width: 40rem) {
  body { font-size: 1rem; }
  h2 { margin-top: 3rem; }
  th, td { padding-inline: .55rem; }
  .scroll tbody th:first-child, .scroll thead tr:first-child th:first-child {
    position: sticky; left: 0; z-index: 1; background: var(--ground); min-width: 7.5rem; max-width: 9rem;
    white-space: normal; overflow-wrap: anywhere;
  }
  #why {
    inset: auto 0 0 0 !important; width: 100vw; max-width: none; max-height: 75vh; border-width: 1px 0 0;
    border-radius: 10px 10px 0 0;
  }
}
@media print {
  body { font-size: 10pt; background: #fff; color: #000; }
  nav, .downloads, #why, .chart details, .skip { display: none !important; }
  header, main, footer { max-width: none; padding: 0; }
  .scroll { overflow: visible; background: none; }
  h2 { margin-top: 1.5rem; }
  .panel, tr, figure { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
  .num { text-decoration: none; }
  table { font-size: 8.5pt; }
  th, td { padding: .2rem .4rem; }
}
"""

JS = """
(() => {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const ancestry = read("data-ancestry");
  const numbers = new Map(ancestry.rows.map((row) =>
    [row[0], Object.fromEntries(ancestry.columns.map((name, place) => [name, row[place]]))]));
  const card = document.getElementById("why");

  // Everything from data enters as text, never as markup.
  const make = (tag, ...children) => {
    const element = document.createElement(tag);
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  };
  const list = (pairs) => make("dl", ...pairs.filter(([, text]) => text !== null && text !== "" && text !== undefined)
    .flatMap(([name, text]) => [make("dt", name), make("dd", String(text))]));
  const file = (what, path, sha256) =>
    make("li", make("span", what), make("code", path), sha256 ? make("code", "sha256 " + sha256) : "");

  const ancestryOf = (id) => {
    const n = numbers.get(id);
    if (!n) return [make("p", "This page holds no number " + id + ".")];
    const record = ancestry.records[n.record];
    const chain = make("ol");
    chain.append(file(record ? "record" : "record expected at", n.record, record && record.sha256));
    for (const part of record ? record.parts : []) chain.append(file(part[0], part[1], part[2]));
    return [
      make("h2", n.shown), make("code", id),
      list([["metric", n.metric + (n.unit ? " (" + n.unit + ")" : "")], ["phase", n.phase],
        ["no number because", n.reason], ["dataset", n.dataset],
        ["system", n.system], ["topology", n.topology], ["workload", n.workload], ["K", n.k],
        ["clients", n.clients], ["filter", n.filter], ["runs", n.runs], ["key", n.key],
        ["record made", record && record.created], ["code", record && record.code]]),
      make("h3", "Made from"), chain,
      make("h3", "The chain in full"), make("code", "anncestry why " + id),
    ];
  };

  const unmark = () => document.querySelectorAll(".num.open").forEach((open) => open.classList.remove("open"));

  const show = (ids, anchor) => {
    unmark();
    const close = make("button", "×");
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => card.hidePopover());
    const parts = ids.flatMap((id, place) => place ? [make("hr"), ...ancestryOf(id)] : ancestryOf(id));
    if (ids.length > 1) parts.unshift(make("p", "Computed from the first number and the second:"));
    card.replaceChildren(close, ...parts);
    if (card.matches(":popover-open")) card.hidePopover();
    card.showPopover();
    if (anchor) {
      const box = anchor.getBoundingClientRect();
      const below = box.bottom + 8, height = card.offsetHeight;
      card.style.top = Math.max(8, below + height < innerHeight ? below : Math.min(box.top - height - 8 > 8
        ? box.top - height - 8 : innerHeight, innerHeight - height - 8)) + "px";
      card.style.left = Math.max(8, Math.min(box.left, innerWidth - card.offsetWidth - 24)) + "px";
      if (anchor.classList) anchor.classList.add("open");
    }
    card.scrollTop = 0;
    close.focus({ preventScroll: true });
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a.num");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const ids = link.dataset.n.split(" ");
    if (ids.length === 1) history.replaceState(null, "", "#" + ids[0]);
    show(ids, link);
  });
  card.addEventListener("toggle", (event) => { if (event.newState === "closed") unmark(); });

  // A page opened at #n… shows that number at once, so that a number can be cited by its address.
  const fromAddress = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    if (!numbers.has(id)) return;
    const link = document.getElementById(id) || document.querySelector("h1");
    link.scrollIntoView({ block: "center", behavior: "instant" });
    show([id], link);
  };
  addEventListener("hashchange", fromAddress);

  const specs = read("data-charts");
  const drawn = [...document.querySelectorAll("[data-chart]")].map((element) =>
    vegaEmbed(element, specs[Number(element.dataset.chart)], {
      ast: true, renderer: "svg", config: read("data-config"),
      actions: { export: true, source: false, compiled: false, editor: false },
    }).then(({ view }) => view.addEventListener("click", (event, item) => {
      const id = item && item.datum && item.datum.number_id;
      if (id) show([id], { getBoundingClientRect: () => new DOMRect(event.clientX, event.clientY, 0, 0) });
    })).catch((error) => {
      element.replaceChildren(make("p", "This chart could not be drawn; its numbers are in the tables."));
      console.error(error);
    }));
  Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = "all"; fromAddress(); });
})();
"""
