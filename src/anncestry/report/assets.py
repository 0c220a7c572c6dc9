"""The pages' own style, inlined so that they need nothing else: a plain string, without data."""

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
html { scroll-behavior: smooth; scroll-padding-top: 4rem; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) {
  html { scroll-behavior: auto; }
}
body { margin: 0; background: var(--ground); color: var(--ink); font: 1.0625rem/1.6 var(--serif); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--raised); padding: .5rem; }
header, main, footer { max-width: 76rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 3rem); }
header { padding-top: clamp(1rem, 3vw, 2.5rem); }
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
nav, .eyebrow, .facts, .legend, .downloads { font: .875rem/1.5 var(--sans); color: var(--soft); }
.eyebrow { margin: 0 0 .4rem; letter-spacing: .01em; }
.note { color: var(--soft); font-size: .95rem; }
.lede { font-size: 1.125rem; }
nav { margin: 1.75rem 0 0; padding: .6rem 0; border-block: 1px solid var(--line); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; list-style: none; margin: 0; padding: 0; }
nav a { text-decoration: none; display: inline-block; padding-block: .2rem; }
nav a:hover { text-decoration: underline; }
nav.pages { margin: 0 0 1.75rem; padding: 0 0 .5rem; border-top: 0; }
nav.pages [aria-current] { color: var(--ink); font-weight: 600; border-bottom: 2px solid var(--ink); }
[hidden] { display: none !important; }
#filter {
  position: sticky; top: 0; z-index: 3; margin-top: 1rem; background: var(--ground); border-bottom: 1px solid
  var(--line); font: .875rem/1.5 var(--sans); display: flex; flex-wrap: wrap; align-items: center; gap: .25rem 1.25rem;
  padding-block: .4rem;
}
#filter details { margin: 0; position: relative; }
#filter summary { cursor: pointer; color: var(--link); padding: .2rem 0; overflow-wrap: anywhere; }
#filter fieldset {
  position: absolute; top: 100%; left: 0; z-index: 4; margin: 0; padding: .5rem .9rem; min-width: 100%; width:
  max-content; max-width: min(28rem, 90vw); max-height: 60vh; overflow: auto; border: 1px solid var(--line);
  border-radius: 4px; background: var(--raised); box-shadow: 0 8px 30px rgb(0 0 0 / .18);
}
#filter legend { position: absolute; clip-path: inset(50%); }
#filter label { display: flex; gap: .5rem; align-items: baseline; padding: .2rem 0; overflow-wrap: anywhere; }
#filter input { accent-color: var(--link); }
#filter p { margin: 0; color: var(--soft); }
#filter button, button.sort { all: unset; cursor: pointer; }
#filter button { color: var(--link); text-decoration: underline; text-underline-offset: .2em; }
#filter button:focus-visible, button.sort:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
button.sort:hover { color: var(--link); }
button.sort::after { content: ""; display: inline-block; width: 1.1em; text-align: center; color: var(--soft); }
button.sort:hover::after, button.sort:focus-visible::after { content: "↕"; }
[aria-sort=ascending] > button.sort::after { content: "↑"; }
[aria-sort=descending] > button.sort::after { content: "↓"; }
pre.mono { white-space: pre-wrap; }
.gates { list-style: none; padding: 0; margin: .5rem 0; font: .875rem/1.5 var(--sans); }
.files { font: .8125rem/1.5 var(--sans); color: var(--soft); margin: 0 0 1.5rem; }
.tables + .files + .tables { margin-top: 2.25rem; }
td.out > * { visibility: hidden; }
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
figcaption + .panels { margin-top: .75rem; }
figure { margin: 0 0 1rem; }
.panel { min-width: 0; }
.chart { width: 100%; min-height: 4rem; }
div.chart.vega-embed { width: 100%; padding: 0; display: block; color: var(--ink); }
.chart svg { display: block; }
.chart details { margin: 0; }
div.chart.vega-embed summary {
  opacity: 0; top: -1.75rem; background: var(--raised); color: var(--ink); border-color: var(--line); box-shadow: none;
}
div.chart.vega-embed:hover summary, div.chart.vega-embed summary:focus-visible, div.chart.vega-embed [open] summary
{
  opacity: .7;
}
@media (hover: none) {
  div.chart.vega-embed summary { opacity: .4; }
}
.chart .mark-text text[fill^="#"] { filter: brightness(.7); }
@media screen and (prefers-color-scheme: dark) {
  .chart .mark-text text[fill^="#"] { filter: brightness(1.5); }
}
.chart .mark-symbol path, .chart .mark-rect path { cursor: pointer; }
.scroll {
  position: relative; overflow-x: auto; margin: .75rem 0 .5rem; padding-bottom: .25rem;
  overscroll-behavior-x: contain; background:
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
.tables thead th:not(.long) { white-space: nowrap; }
.many table { font-size: .8125rem; }
.many th:not(:first-child), .many td { padding-inline: .5rem; }
.many tbody th.long { white-space: normal; min-width: 12.5rem; max-width: 16rem; }
td.n.words { white-space: normal; min-width: 13rem; max-width: 24rem; text-align: left; }
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
tr:target, .num:target, .num.open { background: var(--mark); }
.best .num { font-weight: 700; }
.absent .num, .absent { color: var(--warn); font-style: italic; }
.published { display: block; color: var(--soft); font-size: .8125rem; font-style: normal; }
code, .mono { font: .8125rem/1.45 var(--mono); overflow-wrap: anywhere; }
.tables + .tables { margin-top: 2.25rem; }
.sheet td, .sheet th { max-width: 34rem; white-space: normal; overflow-wrap: break-word; }
.sheet td { min-width: 11rem; }
.of-systems td { max-width: 20rem; overflow-wrap: anywhere; }
.tight td { min-width: 0; }
.tight thead th { white-space: nowrap; }
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
  #filter { position: static; }
  html { scroll-padding-top: 1rem; }
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
  nav, .downloads, .files, #why, #filter, .chart details, .skip { display: none !important; }
  button.sort::after { content: none !important; }
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
