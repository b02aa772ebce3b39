// Elements, numbers and charts: functions without state.

const SVG = "http://www.w3.org/2000/svg";
const VERDICTS = ["robust", "unknown", "vulnerable", "misclassified"];

/** A new HTML element with attributes and children; text children are text, never markup. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** A new SVG element. */
function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "class") node.setAttribute("class", value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number with so many digits. */
function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}

function percent(share) {
  return Number.isNaN(share) ? "–" : `${(100 * share).toFixed(1)} %`;
}

/** An interval of shares, or one share where both ends are shown as the same. */
function between(least, most) {
  const [low, high] = [percent(least), percent(most)];
  return low === high ? low : `${low} to ${high}`;
}

function duration(seconds) {
  if (seconds < 1) return `${number(1000 * seconds)} ms`;
  if (seconds < 120) return `${number(seconds)} s`;
  return seconds < 7200 ? `${number(seconds / 60)} min` : `${number(seconds / 3600)} h`;
}

/** Round numbers from 0 to at most `largest`, about `count` of them. */
function ticks(largest, count = 5) {
  const rough = largest / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = 0; i * step <= largest * 1.0001; i += 1) found.push(Number((i * step).toPrecision(6)));
  return found;
}

const BOX = { width: 380, height: 220, left: 44, right: 10, top: 10, bottom: 38 };

/** The frame of a chart: axes with names, and the functions from values to places. */
function frame(label, names, horizontal, vertical) {
  const { width, height, left, right, top, bottom } = BOX;
  const x = (value) => left + (horizontal.place(value)) * (width - left - right);
  const y = (value) => height - bottom - (value / vertical.largest) * (height - top - bottom);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of vertical.ticks) {
    svg.append(
      drawn("line", { class: "rule", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, vertical.text(value)),
    );
  }
  for (const value of horizontal.ticks) {
    svg.append(drawn("text", { x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, horizontal.text(value)));
  }
  svg.append(
    drawn("path", { class: "axis", d: `M${left},${top}V${height - bottom}H${width - right}` }),
    drawn("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, names[0]),
  );
  return { svg, x, y };
}

function upTo(largest) {
  return { place: (value) => Math.min(1, value / largest), ticks: ticks(largest), text: (value) => String(value) };
}

/** The share of points whose end exceeds a radius, as corners of a falling step curve. */
function steps(ends, total, largest) {
  const sorted = [...ends].sort((a, b) => a - b);
  let alive = sorted.filter((end) => end > 0).length;
  const corners = [[0, alive / total]];
  for (const end of sorted) {
    if (end <= 0) continue;
    if (end > largest) break;
    corners.push([end, alive / total]);
    alive -= 1;
    corners.push([end, alive / total]);
  }
  corners.push([largest, alive / total]);
  return corners;
}

function line(corners, x, y) {
  let text = "";
  for (const [a, b] of corners) text += `${text ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`;
  return text;
}

/** Certified accuracy below, accuracy under attack above, and the band of what is unknown between them. */
function accuracyChart(subject, eps, largest, reading) {
  const vertical = { largest: 1, ticks: [0, 0.25, 0.5, 0.75, 1], text: (value) => `${100 * value} %` };
  const label = `Accuracy over the radius. At ${number(eps)} at least ${percent(subject.provedShare(eps))} of the points are proved `
    + `and at most ${percent(subject.possibleShare(eps))} are robust.`;
  const { svg, x, y } = frame(label, ["radius eps"], upTo(largest), vertical);
  const right = subject.rows.filter((row) => row.correct);
  const low = steps(right.map((row) => row.lower), subject.rows.length, largest);
  const high = steps(right.map((row) => row.upper), subject.rows.length, largest);
  const below = `${line(low, x, y)}L${x(largest)},${y(0)}L${x(0)},${y(0)}Z`;
  const band = `${line(high, x, y)}L${line([...low].reverse(), x, y).slice(1)}Z`;
  const cursor = drawn("line", { class: "eps", x1: x(eps), x2: x(eps), y1: BOX.top, y2: y(0) });
  svg.append(
    drawn("path", { class: "below", d: below }), drawn("path", { class: "band", d: band }),
    drawn("path", { class: "attacked", d: line(high, x, y) }), drawn("path", { class: "certified", d: line(low, x, y) }), cursor,
  );
  const say = (at) => {
    reading.textContent = `At eps ${number(at)}: proved ${percent(subject.provedShare(at))}, at most ${percent(subject.possibleShare(at))}.`;
  };
  say(eps);
  svg.addEventListener("pointermove", (event) => {
    const area = svg.getBoundingClientRect();
    const place = ((event.clientX - area.left) / area.width) * BOX.width;
    const at = Math.max(0, Math.min(1, (place - BOX.left) / (BOX.width - BOX.left - BOX.right))) * largest;
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    say(at);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", x(eps));
    cursor.setAttribute("x2", x(eps));
    say(eps);
  });
  return svg;
}

/** How many points have which radius: bars of the lower ends, an outline of the upper ends. */
function radiusChart(subject, largest) {
  const bins = 24;
  const count = (ends) => {
    const counts = new Array(bins).fill(0);
    for (const end of ends) if (end < largest) counts[Math.floor((end / largest) * bins)] += 1;
    return counts;
  };
  const right = subject.rows.filter((row) => row.correct);
  const lows = count(right.map((row) => row.lower));
  const highs = count(right.map((row) => row.upper));
  const most = Math.max(1, ...lows, ...highs);
  const vertical = { largest: most, ticks: ticks(most, 4).filter(Number.isInteger), text: String };
  const { svg, x, y } = frame("Histogram of radii of correctly classified points.", ["radius"], upTo(largest), vertical);
  lows.forEach((value, i) => {
    const from = x((i / bins) * largest) + 0.5;
    svg.append(drawn("rect", { class: "bar", x: from, y: y(value), width: Math.max(1, x(largest / bins) - x(0) - 1), height: y(0) - y(value) }));
  });
  const corners = highs.flatMap((value, i) => [[(i / bins) * largest, value], [((i + 1) / bins) * largest, value]]);
  svg.append(drawn("path", { class: "outline", d: line(corners, x, y) }));
  const beyond = (ends) => ends.filter((end) => !(end < largest)).length;
  return [svg, beyond(right.map((row) => row.lower)), beyond(right.map((row) => row.upper))];
}

/** The share of points that were done within so many seconds each, over a logarithmic axis. */
function timeChart(subject) {
  const times = subject.rows.map((row) => Math.max(row.seconds, 1e-4)).sort((a, b) => a - b);
  const low = Math.floor(Math.log10(times[0]));
  const high = Math.max(low + 1, Math.ceil(Math.log10(times[times.length - 1])));
  const powers = [];
  for (let i = low; i <= high; i += 1) powers.push(10 ** i);
  const horizontal = {
    place: (value) => (Math.log10(value) - low) / (high - low), ticks: powers, text: (value) => duration(value),
  };
  const vertical = { largest: 1, ticks: [0, 0.5, 1], text: (value) => `${100 * value} %` };
  const { svg, x, y } = frame("Share of points done within a time.", ["time of a point"], horizontal, vertical);
  const corners = [[10 ** low, 0]];
  times.forEach((time, i) => corners.push([time, i / times.length], [time, (i + 1) / times.length]));
  corners.push([10 ** high, 1]);
  svg.append(drawn("path", { class: "times", d: line(corners, x, y) }));
  return svg;
}

/** The interval of one point on a scale: proved, unknown, and the adversarial example. */
function intervalChart(row, eps, largest) {
  const width = 620;
  const left = 12;
  const x = (value) => left + Math.min(1, value / largest) * (width - 2 * left);
  const text = `Radius between ${number(row.lower)} and ${number(row.upper)}`;
  const svg = drawn("svg", { viewBox: `0 0 ${width} 92`, role: "img", "aria-label": `${text}, eps is ${number(eps)}.` });
  const end = Number.isFinite(row.upper) ? row.upper : largest;
  const close = x(row.lower) < 140;
  svg.append(
    drawn("rect", { class: "band", x: x(0), y: 34, width: Math.max(0, x(end) - x(0)), height: 18 }),
    drawn("rect", { class: "bar", x: x(0), y: 34, width: x(row.lower) - x(0), height: 18 }),
  );
  for (const value of ticks(largest, 6)) {
    svg.append(
      drawn("line", { class: "axis", x1: x(value), x2: x(value), y1: 52, y2: 57 }),
      drawn("text", { x: x(value), y: 70, "text-anchor": "middle" }, String(value)),
    );
  }
  svg.append(drawn("path", { class: "axis", d: `M${x(0)},52H${x(largest)}` }));
  const turned = x(end) > width - 150;
  if (Number.isFinite(row.upper)) {
    svg.append(drawn("circle", { class: "mark", cx: x(row.upper), cy: 43, r: 6 }));
    svg.append(drawn("text", { x: x(end) + (turned ? 4 : 0), y: 26, "text-anchor": turned ? "end" : "start" }, `adversarial at ${number(row.upper)}`));
  } else {
    svg.append(drawn("text", { x: x(largest), y: 26, "text-anchor": "end" }, "no adversarial example known"));
  }
  svg.append(
    drawn("text", { x: x(row.lower), y: 10, "text-anchor": close ? "start" : "end" }, `proved up to ${number(row.lower)}`),
    drawn("line", { class: "axis", x1: x(row.lower), x2: x(row.lower), y1: 14, y2: 34 }),
    drawn("line", { class: "eps", x1: x(eps), x2: x(eps), y1: 28, y2: 57 }),
    drawn("text", { x: x(eps), y: 88, "text-anchor": x(eps) > width - 60 ? "end" : x(eps) < 60 ? "start" : "middle" }, `eps ${number(eps)}`),
  );
  return svg;
}

/** Bars of several shares beside each other, one class of background each. */
function stack(shares, label) {
  const parts = VERDICTS.filter((verdict) => shares[verdict] > 0).map((verdict) => {
    const part = element("span", { class: `${verdict}-bg` });
    part.style.flexGrow = shares[verdict];
    return part;
  });
  return element("div", { class: "stack", role: "img", "aria-label": label }, ...parts);
}
