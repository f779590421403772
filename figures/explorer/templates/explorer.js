"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const ROWS = 200; // of the table; more are told of
const SYMBOLS = ["circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star", "hexagon", "pentagon"];
const COLOURS = ["#0b57a4", "#b3541e", "#12633a", "#8a1c7c", "#7a4b00", "#3d3d3d", "#c2185b", "#00707f", "#5e35b1", "#9c1f24"];
const arms = [...new Set(data.points.map(point => point.arm))].sort();
const selects = [...document.querySelectorAll("select[data-key]")];
let shown = [];

function option(value, text) {
  const one = document.createElement("option");
  one.value = value;
  one.textContent = text;
  return one;
}

function words(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

function matches(point, without) {
  return selects.every(one => one === without || !one.value || String(point[one.dataset.key]) === one.value);
}

function hasAxes(point) {
  return at("x").value in point && at("y").value in point;
}

// What can be chosen beside the other choices, with how many points it leaves.
function fillFilters() {
  for (const one of selects) {
    const chosen = one.value, counts = new Map();
    for (const point of data.points)
      if (hasAxes(point) && matches(point, one) && point[one.dataset.key] !== undefined) {
        const value = String(point[one.dataset.key]);
        counts.set(value, (counts.get(value) || 0) + 1);
      }
    if (chosen && !counts.has(chosen)) counts.set(chosen, 0);
    const values = [...counts.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    one.replaceChildren(option("", "all"), ...values.map(value => option(value, `${value} (${counts.get(value)})`)));
    one.value = chosen;
  }
}

// Points that no other one beats on both axes; of unlike cells there is none.
function frontOf(points) {
  const [x, y] = [at("x").value, at("y").value];
  const gain = (axis, point) => (data.axes[axis].less ? -1 : 1) * point[axis];
  const beats = (a, b) => gain(x, a) >= gain(x, b) && gain(y, a) >= gain(y, b) && (gain(x, a) > gain(x, b) || gain(y, a) > gain(y, b));
  return points.filter(one => !points.some(other => beats(other, one))).sort((a, b) => a[x] - b[x]);
}

function mixed(points) {
  const keys = ["workload", "dataset", "device", "precision", "batch_size"];
  return keys.filter(key => new Set(points.map(point => point[key])).size > 1);
}

function draw() {
  const [x, y] = [at("x").value, at("y").value];
  shown = data.points.filter(point => matches(point) && hasAxes(point));
  const traces = arms.filter(arm => shown.some(point => point.arm === arm)).map(arm => {
    const own = shown.filter(point => point.arm === arm), place = arms.indexOf(arm);
    return {
      type: "scatter", mode: "markers", name: arm, x: own.map(point => point[x]), y: own.map(point => point[y]),
      customdata: own.map(point => data.points.indexOf(point)),
      marker: { size: 11, symbol: SYMBOLS[(place + Math.floor(place / COLOURS.length)) % SYMBOLS.length], color: COLOURS[place % COLOURS.length], line: { width: 1, color: "#fff" } },
      text: own.map(point => `${arm}, batch ${words(point.batch_size)}, ${point.device}`), hovertemplate: "%{text}<br>%{x}, %{y}<extra></extra>",
    };
  });
  const unlike = mixed(shown), wanted = at("front").checked && shown.length > 0 && !unlike.length;
  const front = wanted ? frontOf(shown) : [];
  if (front.length)
    traces.unshift({ type: "scatter", mode: "lines", name: "Pareto front", x: front.map(point => point[x]), y: front.map(point => point[y]),
      line: { color: "#5b636d", dash: "dot" }, hoverinfo: "skip" });
  const kind = at("log").checked ? "log" : "linear", narrow = window.innerWidth < 640;
  const axis = name => ({ title: { text: data.axes[name].label }, type: kind, automargin: true, gridcolor: "#d5d9de", zeroline: false });
  Plotly.react("plot", traces, {
    xaxis: axis(x), yaxis: axis(y), margin: { t: 20, r: 10, l: 60, b: 60 }, hovermode: "closest", font: { size: 13 },
    legend: narrow ? { orientation: "h", y: -0.25 } : {}, paper_bgcolor: "#fff", plot_bgcolor: "#fff", showlegend: true,
  }, { responsive: true, displaylogo: false, displayModeBar: false });
  const onFront = front.length ? `; on the Pareto front: ${[...new Set(front.map(point => point.arm))].join(", ")}` : "";
  const why = at("front").checked && unlike.length
    ? `; no Pareto front over several values of ${unlike.map(key => data.filters[key]).join(", ")}: choose one of each` : "";
  at("said").textContent = `${shown.length} of ${data.points.length} points have both values${onFront}${why}.`;
  at("plot").setAttribute("aria-label", `${data.axes[y].label} against ${data.axes[x].label}, ${shown.length} points; the table below has them`);
  fillTable(x, y, new Set(front));
}

function cell(tag, text, number) {
  const one = document.createElement(tag);
  one.textContent = text;
  if (number) one.className = "number";
  return one;
}

function titleOf(point) {
  return `${point.arm}, batch ${words(point.batch_size)}, ${point.device}`;
}

/* What tells a point from others of its title; empty where there is none other. */
function twins(point) {
  const alike = shown.filter(other => titleOf(other) === titleOf(point));
  return alike.length > 1 ? `, ${alike.indexOf(point) + 1} of ${alike.length}` : "";
}

function fillTable(x, y, front) {
  const table = at("table"), titles = ["", "method", "batch", "workload", "device", data.axes[x].label, data.axes[y].label, "front"];
  const more = shown.length > ROWS ? `The first ${ROWS} of ${shown.length} points; filters leave fewer` : `${shown.length} points`;
  table.caption.textContent = `${more}, by ${data.axes[x].label}.`;
  const head = document.createElement("tr");
  head.append(...titles.map((title, place) => {
    const one = cell("th", title, place === 2 || place === 5 || place === 6);
    one.scope = "col";
    if (!title) one.setAttribute("aria-label", "record");
    return one;
  }));
  table.tHead.replaceChildren(head);
  const order = [...shown].sort((a, b) => a[x] - b[x]).slice(0, ROWS);
  table.tBodies[0].replaceChildren(...order.map(point => {
    const row = document.createElement("tr"), button = cell("button", "record");
    button.type = "button";
    button.setAttribute("aria-label", `record of ${titleOf(point)}${twins(point)}`);
    button.addEventListener("click", () => tell(point, true));
    const first = document.createElement("td");
    first.append(button);
    row.dataset.index = data.points.indexOf(point);
    row.append(first, cell("td", point.arm), cell("td", words(point.batch_size), true), cell("td", point.workload || ""), cell("td", point.device),
      cell("td", words(point[x]), true), cell("td", words(point[y]), true), cell("td", front.has(point) ? "yes" : ""));
    return row;
  }));
}

function tell(point, focus) {
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
  draw();
}

for (const id of ["x", "y"]) at(id).replaceChildren(...Object.entries(data.axes).map(([name, axis]) => option(name, axis.label)));
function start() {
  const names = Object.keys(data.axes), memory = "peak_memory_predicted_mib";
  const time = data.own ? "least_time_ms" : "step_time_ms";
  at("x").value = names.includes(time) ? time : names[0];
  at("y").value = names.includes(memory) ? memory : names[1] || names[0];
}
start();
at("form").addEventListener("change", update);
at("form").addEventListener("reset", () => setTimeout(() => { selects.forEach(one => { one.value = ""; }); start(); update(); }));
at("copy").addEventListener("click", () => {
  const range = document.createRange();
  range.selectNodeContents(at("command"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  document.execCommand("copy");
});
update();
at("plot").on("plotly_click", event => {
  const index = event.points[0].customdata;
  if (index !== undefined) tell(data.points[index], false);
});
