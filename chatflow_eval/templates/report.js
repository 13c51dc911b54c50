"use strict";
(() => {
  const ROW = 56; // pixels; the same in report.css
  const CHOICES = 300; // values of one filter to choose from, the most frequent ones
  const BLOCK = 100; // trials whose details stand in one block; as payload.py has it
  const SYMBOLS = { passed: "✓", failed: "✗", errored: "!", skipped: "○", yardstick: "≈" };
  const byId = (id) => document.getElementById(id);
  const browse = byId("browse"), form = byId("filters"), list = byId("list"), panel = byId("panel"), count = byId("count");
  const wide = matchMedia("(min-width: 60rem)");

  // Text stays text: characters that turn a line around, or end one, are shown as escapes.
  const UNPRINTABLE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
  const printable = (text) =>
    String(text).replace(UNPRINTABLE, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));

  const el = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (typeof value === "function") node.addEventListener(name, value);
      else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : printable(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child instanceof Node) node.append(child);
      else if (child !== undefined && child !== null && child !== false && child !== "") node.append(printable(child));
    }
    return node;
  };
  const words = (text) => el("div", { class: "words", dir: "auto" }, text);
  const code = (text) => el("code", { dir: "auto" }, text);
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const seconds = (value) => (value < 0.001 ? "< 1 ms" : value < 0.1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(2)} s`);
  const arrow = " → ";

  // Data.

  const unpack = async (name) => {
    const block = byId(`data-${name}`);
    const bytes = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  };
  const unpacked = new Map();
  const details = async (trial) => {
    const block = Math.floor(index.at[trial] / BLOCK);
    if (!unpacked.has(block)) unpacked.set(block, unpack(`details-${block}`));
    return (await unpacked.get(block))[index.at[trial] % BLOCK];
  };

  let index, trials, haystacks;
  const text = (column) => (trial) => index.texts[index[column][trial]];
  const texts = (column) => (trial) => index.lists[index[column][trial]].map((place) => index.texts[place]);
  const file = text("file"), scenario = text("scenario"), model = text("model"), target = text("target");
  const path = (trial) => `${file(trial)}::${scenario(trial)}`;
  const name = (trial) => (target(trial) === "chatflow" ? model(trial) : `${target(trial)}: ${model(trial)}`);
  const status = (trial) => index.statuses[index.status[trial]];

  // Fragments: the mirror image of links.py.

  const escaped = (part) => part.replaceAll("%", "%25").replaceAll(">", "%3E");
  const join = (pair) => pair.map(escaped).join(">");
  const split = (word) =>
    word.split(">").map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  const spelled = (params) =>
    params.toString().replaceAll("+", "%20").replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%7E", "~").replaceAll("*", "%2A");
  const fragment = (head, values) => {
    const said = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== undefined && value !== "" && value !== null));
    return "#" + [head, spelled(said)].filter(Boolean).join("&");
  };
  const toTrial = (trial, turn) =>
    fragment("", {
      trial: path(trial),
      model: model(trial) === "declared" ? "" : model(trial),
      repeat: index.repeat[trial] === 1 ? "" : index.repeat[trial],
      target: target(trial) === "chatflow" ? "" : target(trial),
      turn,
    });
  const toTrials = () => fragment("trials", { ...filters, q: query });
  // What a link leaves out is the usual value where some trial has it, and any value where none has.
  const sought = (params) => {
    let found = trials.filter((trial) => path(trial) === params.get("trial"));
    for (const [key, of, usual] of [["model", model, "declared"], ["target", target, "chatflow"], ["repeat", (trial) => String(index.repeat[trial]), "1"]]) {
      const same = found.filter((trial) => of(trial) === (params.get(key) ?? usual));
      if (same.length || params.has(key)) found = same;
    }
    return found[0];
  };

  // Filters.

  let FACETS;
  const memo = (column, of) => {
    const known = new Map();
    return (trial) => {
      const key = index[column][trial];
      if (!known.has(key)) known.set(key, of(trial));
      return known.get(key);
    };
  };
  const pairs = (column) =>
    memo(column, (trial) => {
      const flat = texts(column)(trial), found = [];
      for (let place = 0; place < flat.length; place += 2) found.push(join([flat[place], flat[place + 1]]));
      return found;
    });
  const facets = () => [
    { key: "status", label: "Status", of: (trial) => (index.ok[trial] ? [status(trial)] : [status(trial), "unexpected"]), say: (value) => (value === "unexpected" ? "not as expected" : value) },
    { key: "tag", label: "Tag", of: memo("tags", texts("tags")) },
    { key: "agent", label: "Agent", of: memo("agents", texts("agents")) },
    { key: "edge", label: "Handoff", of: pairs("made"), pair: true },
    { key: "incident", label: "Incident", of: memo("incidents", texts("incidents")), say: (value) => value.replaceAll("_", " ") },
    { key: "model", label: "Model", of: memo("model", (trial) => [model(trial)]) },
    { key: "target", label: "Target", of: memo("target", (trial) => [target(trial)]) },
    { key: "expected", label: "Expected handoff", of: pairs("wanted"), pair: true, hidden: true },
    { key: "cell", label: "Decision", of: pairs("cells"), pair: true, hidden: true, say: (value) => { const [expected, actual] = split(value); return `expected ${expected}, came ${actual}`; } },
    { key: "scenario", label: "Scenario", of: (trial) => [path(trial)], hidden: true },
  ];
  const say = (facet, value) => (facet.say ? facet.say(value) : facet.pair ? split(value).join(arrow) : value);

  let filters = {}, query = "", matches = [], active = -1, open = -1;

  const matching = () => {
    const asked = FACETS.filter((facet) => filters[facet.key] !== undefined);
    const sought = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (sought.length && !haystacks) {
      haystacks = trials.map((trial) =>
        [path(trial), name(trial), texts("tags")(trial).join(" "), texts("agents")(trial).join(" "), text("users")(trial), text("why")(trial), status(trial)].join("\n").toLowerCase());
    }
    const counts = new Map(FACETS.map((facet) => [facet, new Map()]));
    matches = [];
    for (const trial of trials) {
      if (!sought.every((word) => haystacks[trial].includes(word))) continue;
      const against = asked.filter((facet) => !facet.of(trial).includes(filters[facet.key]));
      if (against.length > 1) continue;
      if (!against.length) matches.push(trial);
      // A facet counts what its own choice would find beside all other choices.
      for (const facet of against.length ? against : FACETS) {
        if (facet.hidden) continue;
        const found = counts.get(facet);
        for (const value of facet.of(trial)) found.set(value, (found.get(value) ?? 0) + 1);
      }
    }
    return counts;
  };

  let search, chips, selects;
  const buildForm = () => {
    search = el("input", { type: "search", "aria-label": "Search scenario, words of the user, reason, model, tag", placeholder: "Search scenarios and words  ( / )" });
    search.addEventListener("input", () => { query = search.value; go(toTrials(), { replace: true, quiet: true }); apply(); preview(); });
    selects = FACETS.filter((facet) => !facet.hidden && new Set(trials.flatMap(facet.of)).size > (facet.key === "model" || facet.key === "target" ? 1 : 0)).map((facet) => {
      const select = el("select", { "aria-label": facet.label });
      select.addEventListener("change", () => choose(facet.key, select.value));
      return { facet, select };
    });
    chips = el("span", { class: "chips" });
    form.append(search, ...selects.map(({ select }) => select), chips);
    form.addEventListener("submit", (event) => event.preventDefault());
  };
  const choose = (key, value) => {
    if (value) filters[key] = value;
    else delete filters[key];
    go(toTrials());
  };

  const apply = () => {
    const counts = matching();
    for (const { facet, select } of selects) {
      const found = counts.get(facet), chosen = filters[facet.key];
      if (chosen !== undefined && !found.has(chosen)) found.set(chosen, 0);
      const all = [...found.keys()].sort((one, other) => found.get(other) - found.get(one) || (one < other ? -1 : 1));
      const values = all.filter((value, place) => place < CHOICES || value === chosen);
      values.sort((one, other) => (one === "unexpected" ? -1 : other === "unexpected" ? 1 : one < other ? -1 : 1));
      select.replaceChildren(
        el("option", { value: "" }, facet.label),
        ...values.map((value) => el("option", { value, selected: value === chosen }, `${say(facet, value)} (${found.get(value).toLocaleString("en")})`)),
        ...(all.length > values.length ? [el("option", { disabled: true }, `${all.length - values.length} more: search for them`)] : []));
      // What a value holds is compared as it is, and shown as it can be read.
      values.forEach((value, place) => { select.options[place + 1].value = value; });
      select.value = chosen ?? "";
      select.classList.toggle("on", chosen !== undefined);
    }
    const shown = FACETS.filter((facet) => facet.hidden && filters[facet.key] !== undefined);
    chips.replaceChildren(
      ...shown.map((facet) => el("button", { type: "button", class: "chip", "aria-label": `Remove: ${facet.label} ${say(facet, filters[facet.key])}`, click: () => choose(facet.key, "") }, `${facet.label}: ${say(facet, filters[facet.key])} ×`)),
      ...(Object.keys(filters).length || query ? [el("button", { type: "button", class: "chip", click: () => { filters = {}; query = search.value = ""; go(toTrials()); } }, "Clear all")] : []));
    search.value = query;
    const left = index.left_out ? `; ${counted(index.left_out, "more")} in trials.jsonl` : "";
    count.textContent = `${matches.length.toLocaleString("en")} of ${counted(trials.length, "trial")}${left}`;
    active = matches.indexOf(open);
    list.scrollTop = active < 0 ? 0 : Math.max(0, active * ROW - list.clientHeight / 3);
    draw();
  };

  // The list: only the rows in view exist.

  const routeOf = (trial) => {
    const turns = [[]];
    for (const place of index.lists[index.routes[trial]]) {
      if (place < 0) turns.push([]);
      else turns.at(-1).push(index.texts[place]);
    }
    return turns.slice(0, -1);
  };
  const summary = (trial) => {
    const wrong = index.lists[index.wrong[trial]];
    if (wrong.length) {
      const [turn, routed] = wrong, [check, expected, actual] = wrong.slice(2).map((place) => index.texts[place]);
      const where = turn ? `turn ${turn} · ` : "";
      if (routed) return el("span", { class: "told" }, where, expected, " expected ", el("b", { class: "failed" }, "✗ ", actual), " came");
      if (!expected) return el("span", { class: "told" }, where, el("b", { class: status(trial) }, check), " ", text("why")(trial));
      return el("span", { class: "told" }, where, `${check}: ${expected}`, el("b", { class: "failed" }, " ✗ "), actual || text("why")(trial));
    }
    if (!routeOf(trial).length) return el("span", { class: "told" }, text("why")(trial));
    return el("span", { class: "told" }, routeOf(trial).map((agents) => agents.join(arrow)).join("  ·  "));
  };
  const row = (place) => {
    const trial = matches[place], found = texts("incidents")(trial).length, tokens = index.tokens[trial];
    const known = index.ok[trial] && status(trial) === "failed";
    const node = el("div", { class: "row", role: "option", id: `row-${trial}`, "aria-setsize": matches.length, "aria-posinset": place + 1, "aria-selected": String(place === active), click: () => { list.focus({ preventScroll: true }); active = place; go(toTrial(trial)); } },
      el("b", { class: `sign ${known ? "skipped" : status(trial)}` }, el("span", { "aria-hidden": "true" }, SYMBOLS[status(trial)]), el("span", { class: "vh" }, known ? "failed as expected" : status(trial))),
      el("span", { class: "id" }, scenario(trial), el("small", {}, ` ${name(trial)}${index.repeat[trial] > 1 ? ` · repeat ${index.repeat[trial]}` : ""}${known ? " · as expected" : ""}`)),
      summary(trial),
      el("span", { class: "costs" }, found ? el("b", { class: "warn", title: texts("incidents")(trial).join(", ").replaceAll("_", " ") }, `⚠ ${found}`) : "", " ", tokens < 0 ? "" : `${tokens.toLocaleString("en")} tok`));
    node.style.transform = `translateY(${place * ROW}px)`;
    return node;
  };
  const space = el("div", { class: "space", role: "presentation" });
  list.append(space);
  const draw = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
    const last = Math.min(matches.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 6);
    space.style.height = `${matches.length * ROW}px`;
    const rows = [];
    for (let place = first; place < last; place++) rows.push(row(place));
    if (active >= 0 && (active < first || active >= last)) rows.push(row(active));
    space.replaceChildren(...rows);
    if (active >= 0) list.setAttribute("aria-activedescendant", `row-${matches[active]}`);
    else list.removeAttribute("aria-activedescendant");
  };
  let waiting = false;
  const drawSoon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
  list.addEventListener("scroll", drawSoon, { passive: true });
  addEventListener("resize", drawSoon);
  const move = (place) => {
    if (!matches.length) return;
    active = Math.max(0, Math.min(matches.length - 1, place));
    const top = active * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    draw();
    if (wide.matches) go(toTrial(matches[active]), { replace: open >= 0 });
  };
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: matches.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      move(to);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      if (open === matches[active]) return byId("trial-name")?.focus();
      focusPanel = true;
      go(toTrial(matches[active]));
    }
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      if (document.body.dataset.view !== "trials" || (open >= 0 && !wide.matches)) go(toTrials());
      search.focus();
      search.select();
    } else if (event.key === "ArrowDown" && event.target === search) {
      event.preventDefault();
      list.focus();
      move(Math.max(active, 0));
    } else if (event.key === "Escape" && document.body.dataset.view === "trials") {
      if (event.target === search && query) return;
      if (open >= 0) {
        go(toTrials());
        list.focus({ preventScroll: true });
      } else if (event.target === search) list.focus();
    }
  });

  // One trial.

  const stop = (name, nobody) => (name === null ? el("em", {}, nobody) : name === "" ? el("em", {}, "anybody") : name);
  const lane = (places) => {
    const asked = places.some(([expected]) => expected !== "");
    return el("ol", { class: asked ? "lane" : "lane bare" },
      el("li", { class: "names", "aria-hidden": "true" }, asked && el("span", {}, "expected"), el("span", {}, "actual")),
      places.map(([expected, actual, ok]) => el("li", { class: ok ? "ok" : "off" },
        asked && el("span", { class: expected ? "want" : "want no" }, el("i", { class: "vh" }, "expected "), stop(expected, "nobody")),
        el("span", { class: actual === null ? "came no" : "came" }, el("i", { class: "vh" }, ", actual "), !ok && actual !== null && el("i", { "aria-hidden": "true" }, "✗ "), stop(actual, "nobody")))));
  };
  const spent = (step) => el("small", { class: "spent" }, [step.tokens && `${step.tokens[0].toLocaleString("en")} in, ${step.tokens[1].toLocaleString("en")} out`, step.seconds !== undefined && seconds(step.seconds)].filter(Boolean).join(" · "));
  const data = (label, value) => value !== undefined && el("div", { class: "data" }, el("small", {}, label), code(value));
  const STEPS = {
    model: (step) => ["model", step.agent, [
      step.text !== undefined && step.text !== "" ? words(step.text) : !step.calls && el("em", {}, "empty answer"),
      step.calls ? el("div", { class: "calls" }, el("small", {}, "calls "), step.calls.map((called) => [code(called), " "]), spent(step)) : spent(step)]],
    tool: (step) => [step.error || step.unknown ? "tool bad" : "tool", step.agent, [
      el("div", {}, el("small", {}, step.unknown ? "✗ called a tool that it does not have " : "tool "), code(step.tool)),
      data("arguments", step.arguments), data(step.error ? "✗ error" : "result", step.result)]],
    hop: (step) => [step.refused ? "hop bad" : "hop", step.source, [
      el("div", { class: "handoff" }, step.refused && el("b", {}, "✗ refused "), step.call ? "calls " : "hands off to ", el("b", {}, step.target), step.refused && ` (${step.refused})`, step.tool && el("small", {}, " ", code(step.tool))),
      step.reason && el("div", { class: "data" }, el("small", {}, "reason"), words(step.reason)),
      step.message && words(step.message),
      step.failed && el("div", { class: "data" }, el("small", {}, "✗ failed"), words(step.failed)),
      step.withheld && el("small", {}, `without its tools ${step.withheld.join(", ")}`)]],
    limit: (step) => ["limit bad", step.agent, [el("div", {}, "✗ reached the limit ", code(step.limit), ` (${step.value})`)]],
    fault: (step) => ["fault bad", step.agent, [el("div", {}, "✗ a provider would refuse this history: ", code(step.code)), words(step.message)]],
    warning: (step) => ["warning", step.agent, [el("div", {}, "! ", step.message)]],
  };
  const transcript = (turn, wrong, expected) => {
    let before = null;
    const line = (kind, who, body, at) => {
      const here = at !== undefined && at === wrong;
      const node = el("li", { class: `step ${kind}${here ? " wrong" : ""}` }, el("b", { class: who === before ? "who again" : "who" }, who), el("div", { class: "body" }, here && el("p", { class: "here" }, `✗ Here it went wrong${expected ? `: ${expected} was expected` : ""}`), body));
      before = who;
      return node;
    };
    const steps = turn.steps ?? [];
    const rest = [
      turn.steps_left_out && line("warning", "", counted(turn.steps_left_out, "more step") + " in trials.jsonl"),
      turn.failure && line("failure bad", "error", words(turn.failure), steps.length),
      turn.reply && line("model reply", turn.ends ?? "", [words(turn.reply)], turn.failure ? undefined : steps.length),
    ].filter(Boolean);
    const lines = steps.map((step, at) => line(...STEPS[step.is](step), at));
    if (wrong === steps.length && !rest.length && lines.length) lines.at(-1).classList.add("wrong");
    return el("ol", { class: "steps" }, line("user", "user", [words(turn.user)]), lines, rest);
  };
  const LANED = ["route", "stay"]; // checks of which the lanes say what was expected
  const checks = (verdicts) =>
    verdicts && el("ul", { class: "checks" }, verdicts.map((verdict) => el("li", {},
      el("b", { class: verdict.status }, SYMBOLS[verdict.status], " ", verdict.check), " ",
      verdict.status === "passed" ? el("span", { class: "soft" }, verdict.expected) : [
        el("span", { dir: "auto" }, verdict.why),
        verdict.status === "failed" && verdict.expected && !LANED.includes(verdict.check) && el("span", { class: "soft" }, ` expected ${verdict.expected}${verdict.actual ? `, actual ${verdict.actual}` : ""}`)])));
  const found = (incidents) =>
    incidents && el("ul", { class: "found" }, incidents.map((incident) => el("li", {},
      el("b", { class: incident.fails ? "failed" : "warn" }, incident.fails ? "✗ " : "⚠ ", incident.kind.replaceAll("_", " ")), " ",
      incident.message, incident.cost && el("span", { class: "soft" }, ` ${incident.cost}`),
      incident.reasons && el("div", { class: "soft" }, "reasons given: ", incident.reasons.join(", ")),
      incident.quotes && incident.quotes.map((quote) => el("blockquote", { dir: "auto" }, quote)))));

  const turnView = (trial, shown, number, wrong) => {
    const turn = shown.turns[number - 1];
    const failed = (turn.verdicts ?? []).some((verdict) => verdict.status === "failed");
    const sign = turn.failure ? "errored" : failed ? "failed" : turn.reached ? (turn.verdicts ? "passed" : "") : "skipped";
    return el("section", { class: "turn", id: `turn-${number}`, "aria-labelledby": `turn-${number}-name` },
      el("h3", { id: `turn-${number}-name`, tabindex: "-1" }, sign && el("b", { class: sign }, SYMBOLS[sign], " "), `Turn ${number}`,
        el("small", {}, [!turn.reached && "not reached", turn.after_failure && "after a failed turn", turn.tokens && `${(turn.tokens[0] + turn.tokens[1]).toLocaleString("en")} tokens`, turn.seconds !== undefined && seconds(turn.seconds)].filter(Boolean).map((said) => ` · ${said}`)),
        el("a", { href: toTrial(trial, number), class: "anchor", "aria-label": `Link to turn ${number}` }, "#")),
      turn.places ? lane(turn.places) : turn.expected && el("p", { class: "soft" }, "expected ", code(turn.expected)),
      checks(turn.verdicts),
      found(turn.incidents),
      transcript(turn, ...(wrong && wrong[0] === number ? wrong.slice(1) : [])),
      turn.context && el("details", {}, el("summary", {}, "Context after the turn"), code(turn.context)));
  };

  let focusPanel = false, request = 0;
  const show = async (trial, asked) => {
    const mine = ++request;
    const shown = await details(trial);
    if (mine !== request) return;
    const place = matches.indexOf(trial);
    const copied = el("span", { class: "vh", role: "status" });
    const copy = el("button", { type: "button", click: async () => {
      const link = new URL(toTrial(trial, asked), location.href).href;
      try {
        await navigator.clipboard.writeText(link);
        copied.textContent = copy.textContent = "Copied";
      } catch {
        copy.replaceWith(el("input", { readonly: true, value: link, "aria-label": "Link", click: (event) => event.target.select() }));
      }
    } }, "Copy link");
    const step = (by, label, sign) => el("button", { type: "button", "aria-label": label, title: label, disabled: place < 0 || !(place + by in matches), click: () => moveTo(place + by) }, sign);
    const known = index.ok[trial] && status(trial) === "failed";
    const turns = shown.turns ?? [];
    const facts = [
      `${file(trial)}${shown.line ? `:${shown.line}` : ""}`, name(trial), `repeat ${index.repeat[trial]}`,
      ...texts("tags")(trial), index.tokens[trial] >= 0 && counted(index.tokens[trial], "token"), seconds(index.seconds[trial]), shown.replayed && "recorded answers",
    ].filter(Boolean);
    panel.replaceChildren(
      el("div", { class: "tools" },
        el("button", { type: "button", class: "back", click: () => { go(toTrials()); list.focus({ preventScroll: true }); } }, "← Trials"),
        el("span", { class: "title" }, scenario(trial)), step(-1, "Previous trial", "↑"), step(1, "Next trial", "↓"), copy, copied),
      el("header", {},
        el("h2", { tabindex: "-1", id: "trial-name" }, el("b", { class: known ? "skipped" : status(trial) }, SYMBOLS[status(trial)], el("span", { class: "vh" }, ` ${status(trial)} `)), " ", scenario(trial)),
        el("p", { class: "facts" }, facts.map((fact, at) => [at ? " · " : "", fact])),
        shown.xfail && el("p", { class: "soft" }, "Expected to fail: ", shown.xfail),
        shown.failure ? el("p", { class: "errored" }, "! ", shown.failure) : shown.why && el("p", { class: "because", dir: "auto" }, shown.why),
        shown.parted && el("p", { class: "soft" }, "Live from where the recording did not match: ", shown.parted),
        shown.ignored && el("p", { class: "soft" }, "Ignored where requests differ from recordings: ", shown.ignored.join(", ")),
        turns.length > 1 && el("nav", { "aria-label": "Turns" }, turns.map((turn, at) => {
          const bad = (turn.verdicts ?? []).some((verdict) => verdict.status === "failed") || turn.failure;
          return el("a", { href: toTrial(trial, at + 1), "aria-current": asked === at + 1 ? "true" : undefined }, bad ? el("b", { class: "failed" }, "✗ ") : "", `Turn ${at + 1}`);
        }))),
      ...turns.map((_, at) => turnView(trial, shown, at + 1, shown.wrong)),
      ...(shown.turns_left_out ? [el("p", { class: "soft" }, `${counted(shown.turns_left_out, "more turn")} in trials.jsonl`)] : []),
      ...(shown.overall ? [el("section", { class: "turn" }, el("h3", {}, "Whole conversation"), shown.overall_route && lane(shown.overall_route), checks(shown.overall))] : []));
    const wrong = shown.wrong && (!index.ok[trial] || known) ? shown.wrong : null;
    const turn = asked ?? (wrong ? wrong[0] : null);
    const at = turn && byId(`turn-${turn}`);
    const hop = at && (!asked || (wrong && wrong[0] === asked)) ? at.querySelector(".wrong") : null;
    panel.scrollTop = 0;
    if (at) {
      // The lanes stay in sight where they and the hop fit together.
      const top = (node) => node.getBoundingClientRect().top - panel.getBoundingClientRect().top - panel.firstChild.offsetHeight;
      panel.scrollTop = top(at);
      if (hop && hop.getBoundingClientRect().bottom > panel.getBoundingClientRect().bottom) panel.scrollTop += top(hop) - panel.clientHeight / 3;
    }
    if (open >= 0 && (focusPanel || !wide.matches)) byId("trial-name").focus({ preventScroll: true });
    focusPanel = false;
    panel.dataset.trial = trial;
  };
  const moveTo = (place) => {
    active = place;
    go(toTrial(matches[place]), { replace: true });
  };

  // What is shown follows the fragment, and nothing else.

  // Beside the list stands the trial that was opened last, or the first one.
  const preview = () => {
    if (active < 0 && matches.includes(last)) active = matches.indexOf(last);
    if (active < 0 && wide.matches && matches.length) active = 0;
    if (active >= 0) show(matches[active]);
    else panel.replaceChildren(...(matches.length ? [] : [el("p", { class: "hint" }, "No trial is like this.")]));
    if (active >= 0) list.scrollTop = Math.max(0, active * ROW - list.clientHeight / 3);
    draw();
  };

  let overview = 0, before = null, last = -1;
  const go = (to, { replace = false, quiet = false } = {}) => {
    if (location.hash === to) return;
    history[replace ? "replaceState" : "pushState"](null, "", to);
    if (!quiet) follow();
  };
  const follow = () => {
    const params = new URLSearchParams(location.hash.slice(1));
    const [head] = params.keys();
    const view = head === "trials" || head === "trial" ? "trials" : "overview";
    if (view === "trials" && document.body.dataset.view !== "trials") overview = scrollY;
    const returning = document.body.dataset.view === "trials" && view === "overview";
    document.body.dataset.view = view;
    if (view === "overview") {
      open = -1;
      document.body.classList.remove("reading");
      const section = head && byId(head);
      if (section && (!returning || before !== location.hash)) section.scrollIntoView();
      else if (returning) scrollTo({ top: overview, behavior: "instant" });
      before = location.hash;
      return;
    }
    if (!index) return;
    if (head === "trials") {
      const asked = Object.fromEntries(FACETS.filter(({ key }) => params.get(key)).map((facet) => [facet.key, facet.pair ? join(split(params.get(facet.key))) : params.get(facet.key)]));
      [filters, query, open] = [asked, params.get("q") ?? "", -1];
      document.body.classList.remove("reading");
      request++;
      apply();
      preview();
      return;
    }
    const trial = sought(params);
    document.body.classList.add("reading");
    if (trial === undefined) {
      open = -1;
      request++;
      apply();
      panel.replaceChildren(el("div", { class: "tools" }, el("button", { type: "button", class: "back", click: () => go(toTrials()) }, "← Trials")), el("p", { class: "hint" }, "This report has no such trial: ", params.get("trial")));
      return;
    }
    const same = open === trial;
    open = last = trial;
    if (!matches.includes(trial) && matches.length < trials.length) [filters, query] = [{}, ""];
    if (!matches.includes(trial)) apply();
    else if (!same || active !== matches.indexOf(trial)) {
      active = matches.indexOf(trial);
      const top = active * ROW;
      if (top < list.scrollTop || top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = Math.max(0, top - list.clientHeight / 3);
      draw();
    }
    show(trial, Number(params.get("turn")) || undefined);
  };
  addEventListener("hashchange", follow);

  const start = async () => {
    index = await unpack("index");
    trials = index.at.map((_, trial) => trial);
    FACETS = facets();
    buildForm();
    browse.hidden = false;
    apply();
    if (document.body.dataset.view === "trials") follow();
    document.body.dataset.ready = "true";
  };
  document.body.dataset.view = "overview";
  follow();
  start().catch((error) => {
    browse.hidden = false;
    browse.replaceChildren(el("p", { class: "hint" }, `The trials could not be unpacked (${error}); they are all in trials.jsonl.`));
  });
})();
