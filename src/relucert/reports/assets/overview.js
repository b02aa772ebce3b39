// One network in one norm, the table of networks and their cards.

/** A subject of the document with a row for each point, and its figures at any radius. */
class Subject {
  constructor(stored, data) {
    Object.assign(this, stored);
    this.set = data[stored.data];
    const columns = stored.points;
    this.rows = columns.index.map((index, i) => ({
      index,
      label: columns.label[i],
      prediction: columns.prediction[i],
      correct: columns.correct[i],
      lower: columns.lower[i] ?? Infinity,
      upper: columns.upper[i] ?? Infinity,
      lowerBy: columns.lower_by[i],
      upperBy: columns.upper_by[i],
      arithmetic: columns.arithmetic[i],
      margin: columns.margin[i],
      reason: columns.reason[i],
      seconds: columns.seconds[i],
    }));
    this.byIndex = new Map(this.rows.map((row) => [row.index, row]));
  }

  /** The rows of correct points with a lower end of at least eps, unless a counterexample lies within. */
  provedShare(eps) {
    return this.share((row) => verdictOf(row, eps) === "robust");
  }

  /** The share of points that may be robust: correct, without a counterexample within eps. */
  possibleShare(eps) {
    return this.share((row) => row.correct && row.upper > eps);
  }

  share(holds) {
    return this.rows.filter(holds).length / this.rows.length;
  }

  figures(eps) {
    const right = this.rows.filter((row) => row.correct);
    const uppers = right.map((row) => row.upper).filter(Number.isFinite);
    const lowers = right.map((row) => row.lower).filter(Number.isFinite);
    const counts = Object.fromEntries(VERDICTS.map((verdict) => [verdict, 0]));
    for (const row of this.rows) counts[verdictOf(row, eps)] += 1;
    const total = this.rows.length;
    return {
      counts,
      points: total,
      testError: counts.misclassified / total,
      least: (counts.misclassified + counts.vulnerable) / total,
      most: 1 - counts.robust / total,
      meanLower: mean(lowers),
      meanUpper: mean(uppers),
      witnessed: uppers.length,
      exact: mean(right.map((row) => Number(row.upper <= row.lower * 1.0001))),
      seconds: Object.values(this.seconds).reduce((sum, value) => sum + value, 0),
    };
  }
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
}

function verdictOf(row, eps) {
  if (!row.correct) return "misclassified";
  if (row.upper <= eps) return "vulnerable";
  return row.lower >= eps ? "robust" : "unknown";
}

/** The method that decided a row at a radius, or why none did. */
function decider(row, eps) {
  const verdict = verdictOf(row, eps);
  if (verdict === "robust") return row.lowerBy || "nothing to prove";
  if (verdict === "vulnerable") return row.upperBy;
  if (verdict === "misclassified") return "misclassified";
  return row.reason ? `undecided (${row.reason})` : "undecided";
}

function normName(p) {
  return p === "inf" ? "l∞" : `l${p}`;
}

function ball(subject, eps) {
  return `${normName(subject.p)}, eps ${number(eps)}`;
}

const COLUMNS = [
  { name: "Network", value: (subject) => subject.name, cell: (subject) => subject.name },
  { name: "Points", value: (s, f) => f.points, cell: (s, f) => String(f.points) },
  { name: "Test error", wish: "low is good", value: (s, f) => f.testError, cell: (s, f) => percent(f.testError) },
  {
    name: "Robust error", wish: "LB to UB, low is good", value: (s, f) => f.most,
    cell: (s, f) => between(f.least, f.most),
  },
  { name: "Verdicts", wish: "at eps", wide: true, value: (s, f) => f.counts.robust / f.points, cell: null },
  {
    name: "Mean radius", wish: "high is good", value: (s, f) => f.meanLower,
    cell: (s, f) => (f.witnessed === f.points - f.counts.misclassified
      ? `${number(f.meanLower)} to ${number(f.meanUpper)}` : `at least ${number(f.meanLower)}`),
  },
  { name: "Exact", wish: "high is good", value: (s, f) => f.exact, cell: (s, f) => percent(f.exact) },
  { name: "Time", value: (s, f) => f.seconds, cell: (s, f) => duration(f.seconds) },
];

/** The table of networks, sorted by a column. */
function modelTable(subjects, eps, sorting, resort) {
  const rows = subjects.map((subject) => [subject, subject.figures(eps)]);
  const column = COLUMNS[sorting.column];
  if (column) {
    rows.sort((a, b) => {
      const [left, right] = [column.value(...a), column.value(...b)];
      return (left < right ? -1 : left > right ? 1 : 0) * (sorting.down ? -1 : 1);
    });
  }
  const heads = COLUMNS.map((one, i) => {
    const direction = sorting.column === i ? (sorting.down ? "descending" : "ascending") : "none";
    return element("th", { scope: "col", "aria-sort": direction },
      element("button", { type: "button", onclick: () => resort(i) }, one.name), one.wish ? element("span", { class: "wish" }, one.wish) : null);
  });
  const body = rows.map(([subject, figures]) => element("tr", {}, ...COLUMNS.map((one, i) => {
    if (i === 0) return element("th", { scope: "row" }, subject.name);
    return element("td", { class: one.wide ? "wide" : "", "data-label": one.name }, one.cell ? one.cell(subject, figures) : stack(figures.counts, spoken(figures.counts)));
  })));
  return [
    element("caption", { class: "small" }, `${subjects[0].set.title}, ${ball(subjects[0], eps)}`),
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body),
  ];
}

function spoken(counts) {
  return VERDICTS.filter((verdict) => counts[verdict]).map((verdict) => `${counts[verdict]} ${verdict}`).join(", ");
}

/** One sentence about the best network of the table. */
function sentence(subjects, eps) {
  const best = subjects.reduce((a, b) => (b.provedShare(eps) > a.provedShare(eps) ? b : a));
  const figures = best.figures(eps);
  const start = subjects.length > 1 ? `Most is proved for ${best.name}: ` : "";
  const { robust, vulnerable, unknown, misclassified } = figures.counts;
  return `${start}${robust} of ${figures.points} test points are proved to keep their correct class under every change of at most `
    + `${number(eps)} in ${normName(best.p)}; ${vulnerable} have an adversarial example, ${unknown} ${unknown === 1 ? "is" : "are"} unknown, and `
    + `${misclassified} ${misclassified === 1 ? "is" : "are"} misclassified.`;
}

/** The card of one network: verdicts, curves, radii, methods and times. */
function card(subject, eps, largest) {
  const figures = subject.figures(eps);
  const reading = element("p", { class: "reading" });
  const [histogram, lowBeyond, highBeyond] = radiusChart(subject, largest);
  const outside = [lowBeyond ? `${lowBeyond} proved ends` : "", highBeyond ? `${highBeyond} points without a nearer adversarial example` : ""].filter(Boolean);
  const beyond = `Bars: proved ends. Line: distances of adversarial examples.${outside.length ? ` Beyond the axis: ${outside.join(", ")}.` : ""}`;
  return element("article", { class: "card", "aria-label": subject.name },
    element("h3", {}, subject.name),
    element("p", { class: "small" }, `Robust error ${between(figures.least, figures.most)}, test error ${percent(figures.testError)}`),
    stack(figures.counts, spoken(figures.counts)),
    element("div", { class: "charts" },
      element("div", {}, element("h4", {}, "Accuracy over the radius"), curveKey(), accuracyChart(subject, eps, largest, reading), reading),
      element("div", {}, element("h4", {}, "Radii of correctly classified points"), histogram, element("p", { class: "reading" }, beyond)),
      element("div", {}, element("h4", {}, "Verdicts by method"), methodTable(subject, eps)),
      element("div", {}, element("h4", {}, "Points done within a time"), timeChart(subject)),
    ),
    ...subject.notes.map((note) => element("p", { class: "small" }, note)),
  );
}

function curveKey() {
  return element("p", { class: "key" }, element("span", {}, "proved"), element("span", { class: "attack" }, "left by attacks"),
    element("span", { class: "between" }, "unknown"));
}

/** Verdicts by method, and the time of the records that the method decided. */
function methodTable(subject, eps) {
  const methods = new Map();
  const entry = (name) => {
    if (!methods.has(name)) methods.set(name, { robust: 0, vulnerable: 0, unknown: 0, misclassified: 0 });
    return methods.get(name);
  };
  for (const row of subject.rows) entry(decider(row, eps))[verdictOf(row, eps)] += 1;
  const total = (counts) => VERDICTS.reduce((sum, verdict) => sum + counts[verdict], 0);
  const rows = [...methods].sort((a, b) => total(b[1]) - total(a[1])).map(([name, counts]) => {
    const bar = stack(counts, spoken(counts));
    bar.style.width = `${Math.max(2, (100 * total(counts)) / subject.rows.length)}%`;
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", { style: "width:45%" }, bar), element("td", {}, String(total(counts))));
  });
  const times = Object.entries(subject.seconds).filter(([, value]) => value > 0).map(([name, value]) => `${name} ${duration(value)}`);
  return element("div", {},
    element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Decided by"), element("th", { scope: "col", class: "left" }, "Verdicts"), element("th", { scope: "col" }, "Points"))),
      element("tbody", {}, ...rows)),
    element("p", { class: "reading" }, `Time of all records: ${times.join(", ") || "not recorded"}.`),
  );
}
