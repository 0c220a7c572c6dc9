(async () => {
  "use strict";
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (sign) => sign.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const ancestry = JSON.parse(await unpack("data-ancestry"));
  const everyNumber = (ancestry.values[0] || []).map((_, place) => ancestry.values.map((values) => values[place]));
  const numbers = new Map(everyNumber.map((row) => [row[0], row]));
  const column = Object.fromEntries(ancestry.columns.map((name, place) => [name, place]));
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  // The numbers behind a link: those that a computed one comes from, or the one that its address names.
  const numbersOf = (link) => (link.dataset.n || link.hash.slice(1)).split(" ");

  // Everything from data enters as text, never as markup.
  const make = (tag, ...children) => {
    const element = document.createElement(tag);
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  };

  const card = document.getElementById("why");
  const list = (pairs) => make("dl", ...pairs.filter(([, text]) => text !== null && text !== "" && text !== undefined)
    .flatMap(([name, text]) => [make("dt", name), make("dd", String(text))]));
  const file = (what, path, sha256) =>
    make("li", make("span", what), make("code", path), sha256 ? make("code", "sha256 " + sha256) : "");

  const ancestryOf = (id) => {
    if (!numbers.has(id)) return [make("p", "This page holds no number " + id + ".")];
    const n = Object.fromEntries(ancestry.columns.map((name, place) => [name, numbers.get(id)[place]]));
    const record = ancestry.records[n.record];
    const chain = make("ol");
    chain.append(file(record ? "record" : "record expected at", n.record, record && record.sha256));
    for (const part of record ? record.parts : []) chain.append(file(part[0], part[1], part[2]));
    return [
      make("h2", n.shown), make("code", id),
      list([["metric", n.metric + (n.unit ? " (" + n.unit + ")" : "")], ["phase", n.phase],
        ["no number because", n.reason], ["dataset", n.dataset],
        ["system", n.system], ["topology", n.topology], ["workload", n.workload], ["K", n.k],
        ["vectors a request", n.nq > 1 ? n.nq : ""],
        ["clients", n.clients], ["filter", n.filter], ["runs", n.runs], ["key", n.key],
        ["record made", record && record.created], ["code", record && record.code]]),
      make("h3", "Made from"), chain,
      make("h3", "The chain in full"), make("code", "anncestry why " + id),
    ];
  };

  const unmark = () => all(".num.open").forEach((open) => open.classList.remove("open"));

  const show = (ids, anchor) => {
    unmark();
    const close = make("button", "×");
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => card.hidePopover());
    const parts = ids.flatMap((id, place) => place ? [make("hr"), ...ancestryOf(id)] : ancestryOf(id));
    if (ids.length > 1) parts.unshift(make("p", ids.length > 2 ? "Made from these " + ids.length + " numbers:"
      : "Computed from the first number and the second:"));
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
    const ids = numbersOf(link);
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

  // What is chosen of each dimension; nothing chosen is all. The state is the query of the address, so that it can be
  // linked to, and is carried along to the other pages.
  const DIMENSIONS = ["dataset", "system", "topology", "workload"];
  const carriers = DIMENSIONS.map((name) => "[data-" + name + "]").join();
  const known = Object.fromEntries(DIMENSIONS.map((name) => [name, new Set()]));
  // Of two systems or topologies beside each other ("a..b") each is one. What a row of several workloads is labelled with
  // is the name of none.
  const partsOf = (value) => (value || "").split("..");
  for (const row of everyNumber) {
    for (const name of DIMENSIONS) for (const part of partsOf(row[column[name]])) known[name].add(part);
  }
  for (const cell of all("[data-cell]")) {
    for (const name of DIMENSIONS) for (const part of partsOf(cell.dataset[name])) known[name].add(part);
  }
  for (const element of all(carriers)) {
    for (const name of DIMENSIONS) {
      const value = element.dataset[name] || "";
      if (name !== "workload" && !/ \/ | \(| → /.test(value)) for (const part of partsOf(value)) known[name].add(part);
    }
  }
  for (const values of Object.values(known)) { values.delete(""); values.delete(undefined); }
  const asked = new URLSearchParams(location.search);
  const chosen = Object.fromEntries(DIMENSIONS.map((name) =>
    [name, new Set(asked.getAll(name).filter((value) => known[name].has(value)))]));
  // What this page knows nothing of is no filter here, but goes along to the pages that do.
  const carried = Object.fromEntries(DIMENSIONS.map((name) =>
    [name, asked.getAll(name).filter((value) => !known[name].has(value))]));

  const admits = (of) => DIMENSIONS.every((name) => {
    if (!chosen[name].size) return true;
    const named = partsOf(of(name)).filter((part) => known[name].has(part));
    return !named.length || named.some((part) => chosen[name].has(part));
  });
  const admitsNumber = (id) => !numbers.has(id) || admits((name) => numbers.get(id)[column[name]]);
  const admitsElement = (element) => admits((name) => element.dataset[name]);

  // The headings of single columns, from left to right, and of groups with those below them.
  const headings = (table) => {
    const [first, second] = table.tHead ? [...table.tHead.rows] : [];
    const below = second ? [...second.cells] : [];
    const leaves = [], groups = [];
    for (const cell of first ? first.cells : []) {
      if (cell.scope !== "colgroup") { leaves.push(cell); continue; }
      cell.dataset.span ??= cell.colSpan;
      const members = below.splice(0, Number(cell.dataset.span));
      groups.push([cell, members]);
      leaves.push(...members);
    }
    return { leaves, groups };
  };

  const filterTable = (table) => {
    const { leaves, groups } = headings(table);
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    const numbered = leaves.map(() => [0, 0]);
    const states = rows.map((row) => {
      let some = 0, shown = 0;
      const open = admitsElement(row);
      [...row.cells].forEach((cell, place) => {
        const links = all("a.num", cell);
        if (!links.length) return;
        const inside = links.some((link) => numbersOf(link).every(admitsNumber));
        cell.classList.toggle("out", !inside);
        some += 1;
        shown += inside;
        if (numbered[place]) { numbered[place][0] += 1; numbered[place][1] += inside && open; }
      });
      return open && (!some || shown > 0);
    });
    rows.forEach((row, place) => { row.hidden = !states[place]; });
    leaves.forEach((leaf, place) => {
      const away = !admitsElement(leaf) || (numbered[place][0] > 0 && !numbered[place][1]);
      leaf.hidden = away;
      for (const row of rows) if (row.cells[place]) row.cells[place].hidden = away;
    });
    for (const [group, members] of groups) {
      const left = members.filter((member) => !member.hidden).length;
      group.hidden = !left;
      if (left) group.colSpan = left;
    }
    const place = table.closest(".scroll");
    if (place && rows.length) {
      place.hidden = !rows.some((row) => !row.hidden);
      const files = place.nextElementSibling;
      if (files && files.matches(".files")) files.hidden = place.hidden;
    }
  };

  const cells = new Set();
  for (const row of everyNumber) {
    if (row[column.workload]) cells.add(JSON.stringify(DIMENSIONS.map((name) => row[column[name]])));
  }
  for (const element of all("[data-cell]")) cells.add(JSON.stringify(DIMENSIONS.map((name) => element.dataset[name])));
  const points = [...cells].map((cell) => JSON.parse(cell));

  const bar = document.getElementById("filter");
  const status = make("p");
  status.setAttribute("role", "status");
  const reset = make("button", "Show all");
  reset.type = "button";
  const link = make("a", "Link to this view");

  const address = () => {
    const query = new URLSearchParams();
    for (const name of DIMENSIONS) for (const value of [...chosen[name], ...carried[name]]) query.append(name, value);
    return query.size ? "?" + query : "";
  };

  const apply = () => {
    for (const element of all(carriers)) {
      if (!element.closest("table") && !element.closest("#filter")) element.hidden = !admitsElement(element);
    }
    all("main table").forEach(filterTable);
    const shown = points.filter((point) => admits((name) => point[DIMENSIONS.indexOf(name)])).length;
    const some = DIMENSIONS.some((name) => chosen[name].size);
    status.textContent = some ? "Showing " + shown + " of " + points.length + " cells" : "All cells are shown";
    reset.hidden = link.hidden = !some;
    for (const part of all("details", bar)) {
      const picked = [...chosen[part.dataset.of]];
      part.firstChild.textContent = part.dataset.of + ": " + (picked.length > 2 ? picked.length + " chosen"
        : picked.join(", ") || "all");
      for (const box of all("input", part)) box.checked = chosen[part.dataset.of].has(box.value);
    }
    const query = address();
    if (query !== location.search) history.replaceState(null, "", location.pathname + query + location.hash);
    link.href = location.pathname + query;
    for (const other of all('nav.pages a, a[href*=".html"]:not([download])')) {
      if (other === link || /^[a-z]+:/.test(other.getAttribute("href"))) continue;
      const [path, place] = other.getAttribute("href").split("#");
      other.href = path.split("?")[0] + query + (place ? "#" + place : "");
    }
    drawAll();
  };

  const choices = DIMENSIONS.filter((name) => known[name].size > 1);
  for (const name of choices) {
    const boxes = [...known[name]].sort().map((value) => {
      const box = make("input");
      box.type = "checkbox";
      box.value = value;
      box.addEventListener("change", () => {
        if (box.checked) chosen[name].add(value); else chosen[name].delete(value);
        apply();
      });
      return make("label", box, make("span", value));
    });
    const choice = make("fieldset", make("legend", "Show only " + name), ...boxes);
    const part = make("details", make("summary", name), choice);
    part.dataset.of = name;
    part.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !part.open) return;
      part.open = false;
      part.firstChild.focus();
    });
    part.addEventListener("toggle", () => {
      if (part.open) for (const other of all("details[open]", bar)) other.open = other === part;
    });
    bar.append(part);
  }
  document.addEventListener("click", (event) => {
    if (!bar.contains(event.target)) for (const part of all("details[open]", bar)) part.open = false;
  });
  reset.addEventListener("click", () => {
    for (const name of DIMENSIONS) { chosen[name].clear(); carried[name].length = 0; }
    apply();
    const first = bar.querySelector("summary");
    if (first) first.focus();
  });
  bar.append(status, reset, link);
  bar.hidden = !choices.length;

  // A heading sorts its column: upwards, downwards, as it was. What has no number stays at the end.
  const keyOf = (cell) => {
    if (!cell) return null;
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    const text = cell.textContent.trim();
    return cell.classList.contains("absent") || text === "—" || text === "" ? null : text;
  };
  const collator = new Intl.Collator("en", { numeric: true });
  const compare = (one, other) => typeof one === "number" && typeof other === "number" ? one - other
    : collator.compare(String(one), String(other));

  for (const table of all("main table")) {
    const body = table.tBodies[0];
    if (!body || body.rows.length < 2) continue;
    const before = [...body.rows];
    const { leaves } = headings(table);
    leaves.forEach((leaf, place) => {
      const button = make("button", ...leaf.childNodes);
      button.type = "button";
      button.className = "sort";
      leaf.append(button);
      button.addEventListener("click", () => {
        const now = { ascending: "descending", descending: "none" }[leaf.getAttribute("aria-sort")] || "ascending";
        for (const other of leaves) other.removeAttribute("aria-sort");
        if (now !== "none") leaf.setAttribute("aria-sort", now);
        const sign = now === "descending" ? -1 : 1;
        const keyed = before.map((row, order) => [keyOf(row.cells[place]), order, row]);
        if (now !== "none") keyed.sort(([one, first], [other, second]) => one === null || other === null
          ? (one === null) - (other === null) || first - second : sign * compare(one, other) || first - second);
        body.append(...keyed.map(([, , row]) => row));
      });
    });
  }

  // Charts near what is read are drawn at once, the others when there is time, folded ones when they are opened; each
  // anew when the filter changes it.
  const specs = JSON.parse(await unpack("data-charts"));
  const config = JSON.parse(document.getElementById("data-config").textContent);
  const charts = all("[data-chart]").map((element) => ({ element, spec: specs[Number(element.dataset.chart)] }));
  // What is read stays where it is while charts are drawn: each has its room before, with that of its axis.
  const AXIS_PX = 45;
  for (const { element, spec } of charts) {
    if (typeof spec.height === "number") element.style.minHeight = `${spec.height + AXIS_PX}px`;
  }

  const reach = (value, visit) => {
    if (Array.isArray(value)) value.forEach((inner) => reach(inner, visit));
    else if (value && typeof value === "object") {
      if (value.data && Array.isArray(value.data.values)) visit(value.data);
      if (value.datasets) for (const name of Object.keys(value.datasets)) visit(value.datasets, name);
      for (const [name, inner] of Object.entries(value)) {
        if (name !== "data" && name !== "datasets") reach(inner, visit);
      }
    }
  };
  const admitsDatum = (datum) => datum.number_id ? admitsNumber(datum.number_id)
    : admits((name) => datum[name] === undefined ? "" : String(datum[name]));
  // What the filter leaves of a chart: whether anything, and a sign that is another where something else is left.
  const leftOf = (spec) => {
    if (!DIMENSIONS.some((name) => chosen[name].size)) return { empty: false, sign: "all" };
    let left = 0, before = 0, sign = "";
    reach(spec, (holder, name = "values") => {
      for (const datum of holder[name]) {
        const kept = admitsDatum(datum);
        before += 1;
        left += kept && datum.number_id !== undefined;
        sign += kept ? "1" : "0";
      }
    });
    return { empty: before > 0 && !left, sign: sign.includes("0") ? sign : "all" };
  };

  // The library that draws runs once the first chart needs it; the page's policy knows its digest.
  let library;
  const load = async () => {
    const script = make("script");
    script.textContent = await unpack("drawing");
    document.head.append(script);
  };

  const draw = async (chart) => {
    if (!chart.waiting) return;
    chart.waiting = false;
    await (library ??= load());
    const spec = structuredClone(chart.spec);
    reach(spec, (holder, name = "values") => { holder[name] = holder[name].filter(admitsDatum); });
    try {
      if (chart.result) chart.result.finalize();
      chart.result = await vegaEmbed(chart.element, spec, {
        ast: true, renderer: "svg", config, actions: { export: true, source: false, compiled: false, editor: false },
      });
      // What is drawn is one picture to who can't see it, with the name of its place; its menu is beside it.
      const name = chart.element.getAttribute("aria-label");
      const drawn = chart.element.querySelector("svg.marks"), menu = chart.element.querySelector("summary");
      if (drawn) drawn.setAttribute("role", "img"), drawn.setAttribute("aria-label", name);
      if (menu) menu.setAttribute("aria-label", `Save the chart: ${name}`);
      chart.result.view.addEventListener("click", (event, item) => {
        const id = item && item.datum && item.datum.number_id;
        if (id) show([id], { getBoundingClientRect: () => new DOMRect(event.clientX, event.clientY, 0, 0) });
      });
    } catch (error) {
      chart.element.replaceChildren(make("p", "This chart could not be drawn; its numbers are in the tables."));
      console.error(error);
    }
  };

  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) draw(charts.find((chart) => chart.element === target));
    }
  }, { rootMargin: "800px" });
  const idle = window.requestIdleCallback ? (then) => requestIdleCallback(then, { timeout: 500 })
    : (then) => setTimeout(then, 30);

  let turn = 0;
  const drawRest = async (mine) => {
    for (const chart of charts) {
      if (!chart.waiting || chart.element.closest("details:not([open])")) continue;
      await new Promise((then) => idle(then));
      if (mine !== turn) return;
      await draw(chart);
    }
    if (mine === turn) document.documentElement.dataset.drawn = "all";
  };

  const drawAll = () => {
    turn += 1;
    delete document.documentElement.dataset.drawn;
    near.disconnect();
    for (const chart of charts) {
      const { empty, sign } = leftOf(chart.spec);
      chart.element.closest(".panel").hidden = empty;
      if (empty) {
        chart.waiting = false;
        chart.sign = undefined;  // it has to be drawn again, whether it was drawn before or is being drawn now
        continue;
      }
      if (sign === chart.sign) continue;
      chart.sign = sign;
      chart.waiting = true;
    }
    for (const figure of all("main figure")) {
      figure.hidden = !figure.querySelector(".panel:not([hidden])");
    }
    for (const chart of charts) if (chart.waiting) near.observe(chart.element);
    // What stays may have become wider or narrower; charts listen to the window.
    dispatchEvent(new Event("resize"));
    drawRest(turn);
  };

  // What the address leads to is opened, if it can be.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target && !numbers.has(target.id)) target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  addEventListener("hashchange", fromAddress);  // after it: a number is shown where it then stands
  unfold();
  apply();
  fromAddress();
})();
