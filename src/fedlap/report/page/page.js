"use strict";
(() => {
  const all = (root, selector) => Array.from(root.querySelectorAll(selector));
  const build = (name, attributes = {}, text = "") => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };
  document.documentElement.classList.add("script");

  // One tooltip for the element under the pointer.
  const tip = build("div", { id: "tip", role: "status" });
  tip.hidden = true;
  document.body.append(tip);
  const show = (x, y, lines) => {
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
    tip.style.left = Math.max(4, Math.min(left, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - box.height - 4)) + "px";
  };
  const hide = () => { tip.hidden = true; };
  const text = value => value === null ? "–" : String(Number(value.toPrecision(5))).replace("-", "−");

  // Titles of bars, cells and nodes become tooltips.
  for (const title of all(document, "figure svg title")) {
    const owner = title.parentElement;
    owner.dataset.tip = title.textContent;
    title.remove();
  }
  for (const svg of all(document, "figure svg")) {
    const highlight = node => {
      for (const edge of all(svg, ".edge")) {
        edge.classList.toggle("lit", node !== null && edge.dataset.ends.split(" ").includes(node));
      }
    };
    const over = event => {
      const owner = event.target.closest("[data-tip]");
      if (owner === null) { hide(); } else { show(event.clientX, event.clientY, [build("div", {}, owner.dataset.tip)]); }
      if (svg.classList.contains("graph")) highlight(owner === null ? null : owner.dataset.node);
    };
    if (svg.querySelector("[data-tip]") === null) continue;
    svg.addEventListener("pointermove", over);
    svg.addEventListener("pointerdown", over);
    svg.addEventListener("pointerleave", () => { hide(); if (svg.classList.contains("graph")) highlight(null); });
  }

  // Curves: a click on a method hides or shows it in all panels; hovering shows every value at that position.
  const hidden = (figure, name) =>
    all(figure, ".keys button").some(b => b.dataset.name === name && b.getAttribute("aria-pressed") === "false");
  for (const figure of all(document, "figure.curves")) {
    for (const button of all(figure, ".keys button")) {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") === "false";
        button.setAttribute("aria-pressed", String(on));
        for (const series of all(figure, "g.series")) {
          if (series.dataset.name === button.dataset.name) series.classList.toggle("off", !on);
        }
      });
    }
    for (const panel of all(figure, ".panel")) addTooltip(figure, panel);
  }
  function addTooltip(figure, panel) {
    const svg = panel.querySelector("svg"), data = JSON.parse(panel.querySelector("script").textContent);
    const line = svg.querySelector(".cursor");
    let current = null;
    const visible = () => data.series.filter(series => !hidden(figure, series.name));
    const places = () => [...new Set(visible().flatMap(series => series.at.filter(at => at !== null)))].sort((a, b) => a - b);
    const moveTo = at => {
      current = at;
      const lines = [], box = svg.getBoundingClientRect();
      for (const series of visible()) {
        const place = series.at.indexOf(at);
        if (place < 0) continue;
        if (!lines.length) lines.push(build("b", {}, `${data.label} ${text(series.x[place])}`));
        const row = build("div");
        const band = series.low === null ? "" : ` (${text(series.low[place])} to ${text(series.high[place])})`;
        row.append(build("i", { class: series.colour }), `${series.name}: ${text(series.mean[place])}${band}`);
        lines.push(row);
      }
      line.setAttribute("x1", at);
      line.setAttribute("x2", at);
      line.classList.remove("off");
      show(box.left + at * box.width / data.width, box.top + box.height / 4, lines);
    };
    const leave = () => { line.classList.add("off"); hide(); };
    const over = event => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * data.width / box.width;
      const nearest = places().reduce((best, at) => best === null || Math.abs(at - x) < Math.abs(best - x) ? at : best, null);
      if (nearest === null) { leave(); } else { moveTo(nearest); }
    };
    svg.addEventListener("pointermove", over);
    svg.addEventListener("pointerdown", over);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], known = places();
      if (step === undefined || !known.length) return;
      event.preventDefault();
      const place = known.indexOf(current);
      moveTo(known[place < 0 ? (step > 0 ? 0 : known.length - 1) : Math.max(0, Math.min(known.length - 1, place + step))]);
    });
  }

  // Bars: show one method at a time.
  for (const figure of all(document, "figure.bars")) {
    const charts = all(figure, ".one");
    if (charts.length < 2) continue;
    const keys = build("div", { class: "keys", role: "group", "aria-label": "Method" });
    const choose = name => {
      for (const chart of charts) chart.classList.toggle("off", chart.dataset.name !== name);
      for (const button of keys.children) button.setAttribute("aria-pressed", String(button.dataset.name === name));
    };
    for (const chart of charts) {
      const button = build("button", { type: "button", "data-name": chart.dataset.name }, chart.dataset.name);
      button.addEventListener("click", () => choose(chart.dataset.name));
      keys.append(button);
    }
    figure.prepend(keys);
    choose(charts[0].dataset.name);
  }

  // Tables: a click on a header sorts by that column, numerically if it has numbers; a third click restores the order.
  const parseNumber = cell => {
    const found = cell.textContent.replaceAll("−", "-").replaceAll(",", "").match(/[-+]?\d+(\.\d+)?(e[-+]?\d+)?/i);
    return found === null ? null : Number(found[0]);
  };
  for (const table of all(document, "table")) {
    const body = table.tBodies[0], first = Array.from(body.rows), heads = all(table, "thead th");
    if (first.length < 2) continue;
    heads.forEach((head, column) => {
      const button = build("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const order = { none: "descending", descending: "ascending", ascending: "none" }[head.getAttribute("aria-sort") || "none"];
        for (const other of heads) other.removeAttribute("aria-sort");
        if (order === "none") { body.append(...first); return; }
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const cells = new Map(first.map(row => [row, row.cells[column]]));
        const numbers = column > 0 && first.some(row => parseNumber(cells.get(row)) !== null);
        const compare = (one, other) => {
          if (!numbers) return sign * cells.get(one).textContent.localeCompare(cells.get(other).textContent);
          const a = parseNumber(cells.get(one)), b = parseNumber(cells.get(other));
          if (a === null || b === null) return (a === null) - (b === null);
          return sign * (a - b);
        };
        body.append(...first.slice().sort(compare));
      });
    });
  }
})();
