"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const ROWS = 200; // shown in the table at most
const SYMBOLS = { circle: "●", square: "■", diamond: "◆", cross: "✚", x: "✖", "triangle-up": "▲", "triangle-down": "▼", star: "★" };
const COLOURS = {
  light: ["#0b57a4", "#b3541e", "#12633a", "#8a1c7c", "#7a4b00", "#3d3d3d", "#c2185b", "#00707f", "#5e35b1", "#9c1f24"],
  dark: ["#7db7f5", "#f2a36b", "#6fcf97", "#e08ad4", "#d9b25f", "#c9ced6", "#ff8fb5", "#5fd0de", "#b39ddb", "#ff8a80"],
};
const dark = matchMedia("(prefers-color-scheme: dark)"), narrow = matchMedia("(max-width: 56rem)");
const methodOf = point => point.method || point.arm.split(/[:@+]/)[0];
const methods = [...new Set(data.points.map(methodOf))].sort();
const filters = [...document.querySelectorAll("select[data-key]")];
let shown = [], front = [];

function option(value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  return made;
}

function words(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

function label(axis) {
  const { words, unit } = data.axes[axis];
  return unit ? `${words}, ${unit}` : words;
}

function withUnit(axis, value) {
  const { unit } = data.axes[axis];
  return `${words(value)} ${unit}`.trim();
}

// The bounds of a time of a step; other values have none.
function bounds(axis, point) {
  return axis === "step_time_ms" && "step_time_low_ms" in point ? [point.step_time_low_ms, point.step_time_high_ms] : null;
}

function matches(point, without) {
  return filters.every(filter => filter === without || !filter.value || String(point[filter.dataset.key]) === filter.value);
}

function hasAxes(point) {
  return at("x").value in point && at("y").value in point;
}

// Offers the values that leave points under the other filters, each with their number.
function fillFilters() {
  for (const filter of filters) {
    const chosen = filter.value, counts = new Map();
    for (const point of data.points)
      if (hasAxes(point) && matches(point, filter) && point[filter.dataset.key] !== undefined) {
        const value = String(point[filter.dataset.key]);
        counts.set(value, (counts.get(value) || 0) + 1);
      }
    if (chosen && !counts.has(chosen)) counts.set(chosen, 0);
    const values = [...counts.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    filter.replaceChildren(option("", "all"), ...values.map(value => option(value, `${value} (${counts.get(value)})`)));
    filter.value = chosen;
  }
}

const gain = (axis, point) => (data.axes[axis].less ? -1 : 1) * point[axis];

// Points that no other point beats on both axes.
function frontOf(points) {
  const [x, y] = [at("x").value, at("y").value];
  const beats = (a, b) => gain(x, a) >= gain(x, b) && gain(y, a) >= gain(y, b) && (gain(x, a) > gain(x, b) || gain(y, a) > gain(y, b));
  return points.filter(point => !points.some(other => beats(other, point))).sort((a, b) => gain(x, b) - gain(x, a));
}

// The edge of what the front's points reach, from the worst value shown of one axis to that of the other.
function edge(x, y) {
  const worst = axis => shown.reduce((a, b) => (gain(axis, b) < gain(axis, a) ? b : a))[axis];
  const values = front.map(point => [point[x], point[y]]);
  return [[values[0][0], worst(y)], ...values, [worst(x), values.at(-1)[1]]];
}

function armsOf(points) {
  return [...new Set(points.map(point => point.arm))].sort();
}

// A colour per method; a symbol per form of the method among the points shown.
function looks() {
  const colours = COLOURS[dark.matches ? "dark" : "light"], names = Object.keys(SYMBOLS), forms = {};
  return new Map(armsOf(shown).map(arm => {
    const method = methodOf(shown.find(point => point.arm === arm)), place = methods.indexOf(method);
    forms[method] = (forms[method] ?? -1) + 1;
    return [arm, { color: colours[place % colours.length], symbol: names[(place + forms[method]) % names.length] }];
  }));
}

function mark(look) {
  const made = document.createElement("span");
  made.className = "mark";
  made.dataset.symbol = SYMBOLS[look.symbol]; // drawn by the style sheet, so that a copied table has names alone
  made.style.color = look.color;
  made.setAttribute("aria-hidden", "true");
  return made;
}

// The best value of an axis, its method, and the methods whose bounds reach it.
function best(axis) {
  const heading = data.axes[axis].best;
  if (!heading) return [];
  const first = shown.reduce((a, b) => (gain(axis, b) > gain(axis, a) ? b : a)), reach = bounds(axis, first);
  const near = reach ? armsOf(shown.filter(point => (bounds(axis, point) || [point[axis]])[0] <= reach[1] && point.arm !== first.arm)) : [];
  const arm = document.createElement("strong");
  arm.textContent = first.arm;
  const overlap = near.length ? `; its bounds overlap with ${near.join(", ")}` : "";
  return [`${heading}: `, arm, ` (${withUnit(axis, first[axis])}${overlap}). `];
}

function answer() {
  const unlike = data.alike.filter(key => new Set(shown.map(point => point[key])).size > 1);
  front = at("front").checked && shown.length && !unlike.length ? frontOf(shown) : [];
  const parts = [];
  if (!shown.length) parts.push("No point has both values under these filters.");
  else if (unlike.length)
    parts.push(`These points differ in ${unlike.map(key => data.filters[key]).join(", ")}: choose one value of each for a best method and a Pareto front.`);
  else {
    parts.push(...best(at("x").value), ...(at("x").value === at("y").value ? [] : best(at("y").value)));
    if (front.length) parts.push(`Pareto front: ${armsOf(front).join(", ")}.`);
  }
  at("answer").replaceChildren(...parts);
}

// Marks the question whose axes and filters are set.
function showQuestion() {
  const holds = question => question.x === at("x").value && question.y === at("y").value
    && filters.every(filter => filter.value === (question.filters[filter.dataset.key] || ""));
  const place = data.questions.findIndex(holds);
  [...at("questions").querySelectorAll("button")].forEach((button, n) => button.setAttribute("aria-pressed", String(n === place)));
  at("asked").textContent = place < 0 ? `${label(at("y").value)} by ${label(at("x").value)}` : data.questions[place].words;
}

// Ticks as full numbers: at powers of ten over more than three decades, else also between these.
function logTicks(axis) {
  const values = shown.map(point => point[axis]).filter(value => value > 0), ticks = [];
  if (!values.length) return {};
  const [least, most] = [Math.min(...values), Math.max(...values)], span = most / least;
  const steps = span > 1000 ? [1] : span > 10 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most) + 1; power++) ticks.push(...steps.map(step => step * 10 ** power));
  const text = tick => tick.toLocaleString("en", { maximumSignificantDigits: 3, ...(tick >= 1e5 ? { notation: "compact" } : {}) });
  return { tickmode: "array", tickvals: ticks, ticktext: ticks.map(text) };
}

function plot() {
  if (!window.Plotly) return; // loads after the first paint
  const [x, y] = [at("x").value, at("y").value], styles = getComputedStyle(document.documentElement), look = looks();
  const colour = name => styles.getPropertyValue(`--${name}`).trim();
  const spread = (axis, points) => {
    const reach = points.map(point => bounds(axis, point) || [point[axis], point[axis]]);
    return { type: "data", symmetric: false, thickness: 1.2, width: 3, visible: axis === "step_time_ms",
      array: points.map((point, n) => reach[n][1] - point[axis]), arrayminus: points.map((point, n) => point[axis] - reach[n][0]) };
  };
  const traces = [...look].map(([arm, { color, symbol }]) => {
    const own = shown.filter(point => point.arm === arm);
    return {
      type: "scatter", mode: "markers", name: arm, x: own.map(point => point[x]), y: own.map(point => point[y]), customdata: own.map(point => data.points.indexOf(point)),
      marker: { size: 11, symbol, color, line: { width: 1, color: colour("paper") } }, error_x: spread(x, own), error_y: spread(y, own),
      text: own.map(point => `${titleOf(point)}<br>${label(x)}: ${words(point[x])}<br>${label(y)}: ${words(point[y])}`), hovertemplate: "%{text}<extra></extra>",
    };
  });
  if (front.length)
    traces.unshift({ type: "scatter", mode: "lines", name: "Pareto front", x: edge(x, y).map(at => at[0]), y: edge(x, y).map(at => at[1]),
      line: { color: colour("faint"), dash: "dot", shape: "hv" }, hoverinfo: "skip" });
  const axis = name => ({ title: { text: label(name), standoff: 12 }, automargin: true, gridcolor: colour("line"), linecolor: colour("line"), zeroline: false,
    ...(at("log").checked ? { type: "log", ...logTicks(name) } : { type: "linear" }) });
  Plotly.react("plot", traces, {
    xaxis: axis(x), yaxis: axis(y), margin: { t: 10, r: 10, l: 50, b: 50 }, hovermode: "closest", showlegend: false,
    font: { size: 13, color: colour("ink") }, paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
  }, { responsive: true, displaylogo: false, displayModeBar: false });
  at("plot").removeAllListeners?.("plotly_click");
  at("plot").on("plotly_click", event => {
    const index = event.points[0].customdata;
    if (index !== undefined) openRecord(data.points[index], false);
  });
}

function fillLegend() {
  const line = front.length ? [["Pareto front", null]] : [];
  at("legend").replaceChildren(...[...looks(), ...line].map(([arm, look]) => {
    const item = document.createElement("li");
    item.append(look ? mark(look) : "┄ ", arm);
    return item;
  }));
}

function cell(tag, text, number) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (number) made.className = "number";
  return made;
}

function titleOf(point) {
  return `${point.arm}, batch ${words(point.batch_size)}, ${point.device}`;
}

// Tells a point from others of its title; empty where no other has it.
function twins(point) {
  const alike = shown.filter(other => titleOf(other) === titleOf(point));
  return alike.length > 1 ? `, ${alike.indexOf(point) + 1} of ${alike.length}` : "";
}

function valueCell(axis, point) {
  const reach = bounds(axis, point);
  return cell("td", words(point[axis]) + (reach ? ` [${words(reach[0])}, ${words(reach[1])}]` : ""), true);
}

function fillTable() {
  const [x, y] = [at("x").value, at("y").value], look = looks();
  const table = at("table"), titles = ["", "method", "batch", "workload", "device", label(x), label(y), "front"];
  const more = shown.length > ROWS ? `The first ${ROWS} of ${shown.length} points; filters leave fewer` : `${shown.length} points`;
  const ranges = [x, y].includes("step_time_ms") ? " Brackets hold a 95 % interval from six launches up, else the range." : "";
  table.caption.textContent = `${more}, by ${label(x)}.${ranges}`;
  const head = document.createElement("tr");
  head.append(...titles.map((title, place) => {
    const made = cell("th", title, place === 2 || place === 5 || place === 6);
    made.scope = "col";
    if (!title) made.setAttribute("aria-label", "record");
    return made;
  }));
  table.tHead.replaceChildren(head);
  const onFront = new Set(front), order = [...shown].sort((a, b) => a[x] - b[x]).slice(0, ROWS);
  table.tBodies[0].replaceChildren(...order.map(point => {
    const row = document.createElement("tr"), button = cell("button", "record"), opener = document.createElement("td");
    button.type = "button";
    button.setAttribute("aria-label", `record of ${titleOf(point)}${twins(point)}`);
    button.addEventListener("click", () => openRecord(point, true));
    opener.append(button);
    row.dataset.index = data.points.indexOf(point);
    const method = document.createElement("td");
    method.append(mark(look.get(point.arm)), point.arm);
    row.append(opener, method, cell("td", words(point.batch_size), true), cell("td", point.workload || ""), cell("td", point.device),
      valueCell(x, point), valueCell(y, point), cell("td", onFront.has(point) ? "yes" : ""));
    return row;
  }));
}

function openRecord(point, focus) {
  at("details").hidden = false;
  at("details-heading").textContent = titleOf(point);
  at("command").textContent = point.command;
  at("columns").replaceChildren(...Object.entries(point).filter(([name]) => name !== "command").map(([name, value]) => {
    const row = document.createElement("tr"), title = cell("th", name);
    title.scope = "row";
    row.append(title, cell("td", words(value)));
    return row;
  }));
  for (const row of at("table").tBodies[0].rows) row.classList.toggle("chosen", Number(row.dataset.index) === data.points.indexOf(point));
  if (focus) at("details").focus();
}

function update() {
  fillFilters();
  shown = data.points.filter(point => matches(point) && hasAxes(point));
  answer();
  showQuestion();
  fillLegend();
  fillTable();
  at("plot").setAttribute("aria-label", `${label(at("y").value)} against ${label(at("x").value)}, ${shown.length} points; the table below has them`);
  plot();
}

function ask(question) {
  at("x").value = question.x;
  at("y").value = question.y;
  at("log").checked = question.log;
  at("front").checked = true;
  for (const filter of filters) {
    const value = question.filters[filter.dataset.key] || "";
    filter.replaceChildren(option(value, value));
    filter.value = value;
  }
  update();
}

const names = Object.keys(data.axes);
for (const id of ["x", "y"]) at(id).replaceChildren(...names.map(name => option(name, label(name))));
at("questions").replaceChildren(...data.questions.map(question => {
  const item = document.createElement("li"), button = cell("button", question.words);
  button.type = "button";
  button.addEventListener("click", () => {
    ask(question);
    if (narrow.matches) at("asked").scrollIntoView({ block: "start" });
  });
  item.append(button);
  return item;
}));
at("choices").open = !narrow.matches;
at("form").addEventListener("change", update);
at("all").addEventListener("click", () => {
  filters.forEach(filter => { filter.value = ""; });
  update();
});
at("copy").addEventListener("click", () => {
  const range = document.createRange();
  range.selectNodeContents(at("command"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  document.execCommand("copy");
});
dark.addEventListener("change", update);
ask(data.questions[0] || { x: names[0], y: names[1] || names[0], log: true, filters: {} });
