// One point: its pictures, interval, logits, slice, and what other networks say.

const pictures = new Map();

/** The picture of a data address, loaded once. */
function picture(address) {
  if (!pictures.has(address)) {
    pictures.set(address, new Promise((resolve) => {
      const image = new Image();
      image.onload = () => resolve(image);
      image.src = address;
    }));
  }
  return pictures.get(address);
}

/** The bytes (red, green, blue, alpha) of one tile of a sheet. */
async function pixels(sheet, tile) {
  const image = await picture(sheet.png);
  const canvas = element("canvas", { width: sheet.width, height: sheet.height });
  const context = canvas.getContext("2d");
  context.drawImage(image, -(tile % sheet.columns) * sheet.width, -Math.floor(tile / sheet.columns) * sheet.height);
  return context.getImageData(0, 0, sheet.width, sheet.height);
}

function canvasOf(sheet, label, paint) {
  const canvas = element("canvas", { width: sheet.width, height: sheet.height, role: "img", "aria-label": label });
  paint().then((data) => canvas.getContext("2d").putImageData(data, 0, 0));
  return canvas;
}

/** Input, adversarial example and magnified difference of a point. */
function imageFigures(subject, row, names) {
  const set = subject.set;
  const tile = set.tiles[row.index];
  if (tile === undefined) return [element("p", { class: "small" }, "The picture of this point is not part of the page.")];
  const input = () => pixels(set.sheet, tile);
  const figures = [element("figure", {}, canvasOf(set.sheet, "The input", input),
    element("figcaption", {}, element("b", {}, "Input"), ` label ${names(row.label)}, predicted ${names(row.prediction)}`))];
  const change = subject.differenceTiles?.[row.index];
  if (!change) return figures;
  const [place, largest] = change;
  const adversarial = async () => {
    const [shown, difference] = await Promise.all([input(), pixels(subject.differences, place)]);
    for (let i = 0; i < shown.data.length; i += 1) {
      if (i % 4 !== 3) shown.data[i] = Math.round(shown.data[i] + ((difference.data[i] - 128) / 127) * largest * 255);
    }
    return shown;
  };
  const magnified = async () => {
    const difference = await pixels(subject.differences, place);
    if (set.channels === 1) for (let i = 0; i < difference.data.length; i += 4) paintChange(difference.data, i);
    return difference;
  };
  const other = subject.witnessLogits[row.index];
  const now = other ? `, predicted ${names(other.indexOf(Math.max(...other)))}` : "";
  const legend = set.channels === 1 ? "orange lighter, blue darker" : "grey is no change";
  figures.push(
    element("figure", {}, canvasOf(set.sheet, "The adversarial example", adversarial),
      element("figcaption", {}, element("b", {}, "Adversarial example"), ` at distance ${number(row.upper)}${now}`)),
    element("figure", {}, canvasOf(set.sheet, "The difference, magnified", magnified),
      element("figcaption", {}, element("b", {}, `Difference × ${number(1 / largest)}`), ` largest change ${number(largest)}; ${legend}`)),
  );
  return figures;
}

/** A grey difference as colour: white is no change, orange lighter and blue darker. */
function paintChange(bytes, i) {
  const value = (bytes[i] - 128) / 127;
  const [red, green, blue] = value > 0 ? [217, 95, 2] : [0, 90, 181];
  const share = Math.min(1, Math.abs(value));
  bytes[i] = 255 + (red - 255) * share;
  bytes[i + 1] = 255 + (green - 255) * share;
  bytes[i + 2] = 255 + (blue - 255) * share;
}

/** A name that may go on in a new line behind _, / and - alone. */
function pieces(text) {
  return String(text).split(/(?<=[_/-])/).flatMap((piece, place) => (place ? [element("wbr", {}), piece] : [piece]));
}

/** The features of an input that is not an image, with their changes. */
function featureTable(subject, row) {
  const changes = subject.changes?.[row.index];
  const values = subject.set.values?.[row.index];
  if (!changes && !values) return element("p", { class: "small" }, "The input of this point is not part of the page.");
  const rows = changes
    ? changes.map(([j, x, z, change]) => [j, number(x, 6), number(z, 6), number(change)])
    : values.map((x, j) => [j, number(x, 6), "–", "–"]);
  const name = (j) => subject.set.columns[j] ?? String(j);
  const heads = ["Feature", "Input", "Adversarial", "Change"].map((head) => element("th", { scope: "col" }, head));
  const left = subject.set.features > rows.length ? `; ${rows.length} of ${subject.set.features} features` : "";
  return element("div", {},
    element("h4", {}, `Features${changes ? ", largest changes first" : ""}${left}`),
    element("div", { class: "scroll" }, element("table", { class: "features" }, element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...rows.map(([j, ...cells]) => element("tr", {}, element("th", { scope: "row" }, ...pieces(name(j))), ...cells.map((cell) => element("td", {}, cell))))))));
}

/** The logits of input and adversarial example; of many classes the largest. */
function logitTable(subject, row, names) {
  const at = subject.logits[row.index];
  if (!at) return null;
  const other = subject.witnessLogits[row.index];
  let classes = at.map((_, i) => i);
  if (classes.length > 12) {
    classes.sort((a, b) => Math.max(at[b], other ? other[b] : -Infinity) - Math.max(at[a], other ? other[a] : -Infinity));
    classes = classes.slice(0, 12);
  }
  const top = (logits) => logits.indexOf(Math.max(...logits));
  const cell = (logits, i) => {
    if (!logits) return null;
    return element("td", {}, i === top(logits) ? element("b", {}, `${number(logits[i])} ◂`) : number(logits[i]));
  };
  return element("div", {},
    element("h4", {}, "Logits (◂ the predicted class)"),
    element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Class"), element("th", { scope: "col" }, "Input"), other ? element("th", { scope: "col" }, "Adversarial") : null)),
      element("tbody", {}, ...classes.map((i) => element("tr", { class: i === row.label ? "chosen" : "" },
        element("th", { scope: "row" }, names(i) + (i === row.label ? " (label)" : "")), cell(at, i), cell(other, i))))));
}

/** The linear regions in a plane around the point. */
function sliceFigure(subject, row) {
  const view = subject.slices?.[row.index];
  if (!view) return null;
  const overlay = drawn("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" },
    drawn("circle", { cx: 50, cy: 50, r: 2.6, fill: "#fff", stroke: "#000", "stroke-width": 1.2 }));
  if (view.witness) {
    const [s, t] = [100 * view.witness[0], 100 - 100 * view.witness[1]];
    overlay.append(drawn("path", { d: `M${s - 3},${t - 3}L${s + 3},${t + 3}M${s - 3},${t + 3}L${s + 3},${t - 3}`, stroke: "#000", "stroke-width": 2.4 }));
  }
  const canvas = canvasOf(subject.sliceSheet, `A plane through the input: ${view.regions} linear regions in it`, () => pixels(subject.sliceSheet, view.tile));
  return element("figure", { class: "slice" }, element("div", { class: "frame" }, canvas, overlay),
    element("figcaption", {}, element("b", {}, "Linear regions around the input"),
      ` at least ${view.regions} in this square of a plane. A colour is a class, white lines are decisions, black is the border of the proved ball; `
      + `the dot is the input${view.witness ? ", the cross the adversarial example" : ""}.`));
}

/** What the word says that records have for undecided points. */
const REASONS = {
  time: "the clock ended the search",
  nodes: "branch and bound reached its number of subproblems",
  memory: "the open subproblems would not fit into memory",
  bound: "the bound is too weak, and the method has nothing more to try",
  rounding: "the bound is positive, but not by more than its rounding error",
  subproblem: "a full leaf could not be decided",
};

function facts(subject, row, eps) {
  const verdict = verdictOf(row, eps);
  const covers = { executed: ", for the network as it runs", real: ", in real arithmetic" }[row.arithmetic] ?? "";
  const list = [
    ["Verdict", element("span", {}, element("span", { class: `tag ${verdict}` }, verdict), ` at ${ball(subject, eps)}`)],
    ["Proved radius", row.lower > 0 && row.correct ? `${number(row.lower)}, by ${row.lowerBy}${covers}` : "none"],
    ["Nearest adversarial", Number.isFinite(row.upper) ? `${number(row.upper)}, by ${row.upperBy}` : row.correct ? "none known" : "the input itself is misclassified"],
    ["Proved margin", row.margin === null ? null : `${number(row.margin)} at eps ${number(subject.eps)}`],
    ["Why undecided", verdict === "unknown" && row.reason ? REASONS[row.reason] ?? row.reason : null],
    ["Time", duration(row.seconds)],
  ];
  return element("dl", { class: "facts" }, ...list.filter(([, value]) => value).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function othersTable(subjects, subject, row, eps) {
  if (subjects.length < 2) return null;
  const rows = subjects.filter((one) => one.byIndex.has(row.index)).map((one) => {
    const other = one.byIndex.get(row.index);
    const verdict = verdictOf(other, eps);
    return element("tr", { class: one === subject ? "chosen" : "" }, element("th", { scope: "row" }, one.name),
      element("td", {}, element("span", { class: `tag ${verdict}` }, verdict)),
      element("td", {}, other.correct ? `${number(other.lower)} to ${number(other.upper)}` : "–"));
  });
  return element("div", {}, element("h4", {}, "This point in all networks"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...["Network", "Verdict", "Radius"].map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows))));
}

/** All that is known of a point, as the body of the dialog. */
function pointBody(subjects, subject, row, eps, largest) {
  const names = (label) => (label === null ? "unknown" : subject.set.classes[label] ?? String(label));
  const end = Number.isFinite(row.upper) ? row.upper : row.lower;
  const scale = Math.max(eps * 1.5, Math.min(end * 1.25, largest * 4), 1e-9);
  const images = subject.set.kind === "image";
  const slice = sliceFigure(subject, row);
  const shown = [];
  if (images) shown.push(element("div", { class: "figures full" }, ...imageFigures(subject, row, names), slice));
  if (row.correct) shown.push(element("div", { class: "full" }, element("h4", {}, "Distance to the nearest change of decision"), intervalChart(row, eps, scale)));
  shown.push(facts(subject, row, eps));
  const logits = logitTable(subject, row, names);
  if (logits) shown.push(logits);
  if (subject.set.kind === "table") shown.push(featureTable(subject, row));
  if (!images && slice) shown.push(slice);
  const others = othersTable(subjects, subject, row, eps);
  if (others) shown.push(others);
  if (subject.set.kind === "none") shown.push(element("p", { class: "small full" }, subject.set.why));
  return shown;
}
