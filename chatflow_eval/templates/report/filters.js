// The filters: what was chosen, which trials are so, and the form that says both.

const CHOICES = 300; // Values of one filter to choose from, the most frequent ones.

/** What a trial has in a column, read once for each different value of the column. */
const memo = (column, read) => {
  const known = new Map();
  return (trial) => {
    const key = index[column][trial];
    if (!known.has(key)) known.set(key, read(trial));
    return known.get(key);
  };
};
const pairs = (column) =>
  memo(column, (trial) => {
    const flat = texts(column)(trial);
    return flat.flatMap((one, place) => (place % 2 ? [] : [join([one, flat[place + 1]])]));
  });

const FACETS = [
  {
    key: "status",
    label: "Status",
    of: (trial) => (index.ok[trial] ? [status(trial)] : [status(trial), "unexpected"]),
    say: (value) => (value === "unexpected" ? "not as expected" : value),
  },
  { key: "tag", label: "Tag", of: memo("tags", tags) },
  { key: "agent", label: "Agent", of: memo("agents", agents) },
  { key: "edge", label: "Handoff", of: pairs("made"), pair: true },
  { key: "incident", label: "Incident", of: memo("incidents", incidents), say: kindName },
  { key: "model", label: "Model", of: memo("model", (trial) => [model(trial)]), differs: true },
  { key: "target", label: "Target", of: memo("target", (trial) => [target(trial)]), differs: true },
  { key: "expected", label: "Expected handoff", of: pairs("wanted"), pair: true, chip: true },
  {
    key: "cell",
    label: "Decision",
    of: pairs("cells"),
    pair: true,
    chip: true,
    say: (value) => `expected ${split(value)[0]}, came ${split(value)[1]}`,
  },
  { key: "scenario", label: "Scenario", of: (trial) => [path(trial)], chip: true },
];
const say = (facet, value) => (facet.say ? facet.say(value) : facet.pair ? split(value).join(ARROW) : value);

let filters = {}; // Facet to the value that was chosen.
let query = "";
let matches = []; // The trials that are so.

/** What a link chooses, and what in it the page does not know. */
const asked = (params) => {
  const facets = FACETS.filter(({ key }) => params.get(key));
  const value = (facet) => (facet.pair ? join(split(params.get(facet.key))) : params.get(facet.key));
  const known = ["trials", "q", ...FACETS.map(({ key }) => key)];
  return {
    chosen: Object.fromEntries(facets.map((facet) => [facet.key, value(facet)])),
    words: params.get("q") ?? "",
    unknown: [...new Set(params.keys())].filter((key) => !known.includes(key)),
  };
};

let haystacks;
const haystack = (trial) =>
  [path(trial), answering(trial), ...tags(trial), ...agents(trial), users(trial), why(trial), status(trial)]
    .join("\n")
    .toLowerCase();

/** Find the trials that are as was chosen; how many would be with each other value of one facet, beside all others. */
const match = () => {
  const chosen = FACETS.filter((facet) => filters[facet.key] !== undefined);
  const needles = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (needles.length) haystacks ??= trials.map(haystack);
  const counts = new Map(FACETS.map((facet) => [facet, new Map()]));
  matches = [];
  for (const trial of trials) {
    if (!needles.every((word) => haystacks[trial].includes(word))) continue;
    const against = chosen.filter((facet) => !facet.of(trial).includes(filters[facet.key]));
    if (against.length > 1) continue;
    if (!against.length) matches.push(trial);
    for (const facet of against.length ? against : FACETS) {
      if (facet.chip) continue;
      const found = counts.get(facet);
      for (const value of facet.of(trial)) found.set(value, (found.get(value) ?? 0) + 1);
    }
  }
  return counts;
};

/** The choices that no trial of the run has, in words. */
const impossible = () =>
  FACETS.filter(({ key }) => filters[key] !== undefined)
    .filter((facet) => !trials.some((trial) => facet.of(trial).includes(filters[facet.key])))
    .map((facet) => `${facet.label} ${say(facet, filters[facet.key])}`);

const form = byId("filters");
const search = el("input", {
  type: "search",
  "aria-label": "Search scenario, words of the user, reason, model, tag",
  placeholder: "Search scenarios and words  ( / )",
});
const chips = el("span", { class: "chips" });
let selects;

const build = () => {
  const offered = FACETS.filter(
    (facet) => !facet.chip && new Set(trials.flatMap(facet.of)).size > (facet.differs ? 1 : 0),
  );
  selects = offered.map((facet) => {
    const select = el("select", { "aria-label": facet.label });
    select.addEventListener("change", () => choose(facet.key, select.value));
    return { facet, select };
  });
  form.append(search, ...selects.map(({ select }) => select), chips);
  form.addEventListener("submit", (event) => event.preventDefault());
};

const choose = (key, value) => {
  if (value) filters[key] = value;
  else delete filters[key];
  go(toTrials(filters, query));
};
const clear = () => go(toTrials({}, ""));

/** Bring the form up to date with what was chosen. */
const fill = (counts) => {
  for (const { facet, select } of selects) fillSelect(facet, select, counts.get(facet));
  const shown = FACETS.filter((facet) => facet.chip && filters[facet.key] !== undefined);
  const removing = shown.map((facet) => {
    const said = `${facet.label}: ${say(facet, filters[facet.key])}`;
    return button(`${said} ×`, () => choose(facet.key, ""), { class: "chip", "aria-label": `Remove ${said}` });
  });
  const any = Object.keys(filters).length || query;
  chips.replaceChildren(...removing, ...(any ? [button("Clear all", clear, { class: "chip" })] : []));
  if (search.value !== query) search.value = query;
};
const fillSelect = (facet, select, found) => {
  const chosen = filters[facet.key];
  if (chosen !== undefined && !found.has(chosen)) found.set(chosen, 0);
  const all = [...found.keys()].sort((one, other) => found.get(other) - found.get(one) || (one < other ? -1 : 1));
  const values = all.filter((value, place) => place < CHOICES || value === chosen);
  values.sort((one, other) => (one === "unexpected" ? -1 : other === "unexpected" ? 1 : one < other ? -1 : 1));
  const left = all.length - values.length;
  select.replaceChildren(
    el("option", { value: "" }, facet.label),
    ...values.map((value) => el("option", null, `${say(facet, value)} (${amount(found.get(value))})`)),
    ...(left ? [el("option", { disabled: true }, `${left} more: search for them`)] : []),
  );
  // What a value holds is compared as it is, and shown as it can be read.
  values.forEach((value, place) => (select.options[place + 1].value = value));
  select.value = chosen ?? "";
  select.classList.toggle("on", chosen !== undefined);
};
