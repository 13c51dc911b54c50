// The list of trials: only the rows in view exist.

const ROW = 56; // Pixels; the same in report.css.
const list = byId("list");
const count = byId("count");
const space = el("div", { class: "space", role: "presentation" });
list.append(space);

let active = -1; // The place among the matches that the keyboard is at.

/** What a trial comes to, in one line: where it went wrong, or its route. */
const summary = (trial) => {
  const told = (...parts) => el("span", { class: "told" }, parts);
  const wrong = index.lists[index.wrong[trial]];
  if (!wrong.length) {
    const turns = routes(trial);
    return told(turns.length ? turns.map((route) => route.join(ARROW)).join("  ·  ") : why(trial));
  }
  const [turn, routed] = wrong;
  const [check, expected, actual] = wrong.slice(2).map((place) => index.texts[place]);
  const where = turn && `turn ${turn} · `;
  if (routed) return told(where || "", expected, " expected ", el("b", { class: "failed" }, "✗ ", actual), " came");
  if (!expected) return told(where || "", el("b", { class: status(trial) }, check), " ", actual);
  return told(where || "", `${check}: ${expected}`, el("b", { class: "failed" }, " ✗ "), actual);
};

let several; // Whether models, targets or repeats differ, so that rows say which one is theirs.
const facts = (trial) => {
  several ??= FACETS.some((facet) => facet.differs && new Set(trials.flatMap(facet.of)).size > 1);
  return [
    several && answering(trial),
    index.repeat[trial] > 1 && `repeat ${index.repeat[trial]}`,
    expectedToFail(trial) && "as expected",
  ].filter(Boolean);
};

const row = (place) => {
  const trial = matches[place];
  const found = incidents(trial).map(kindName);
  const [sign, ended] = expectedToFail(trial) ? ["skipped", "failed as expected"] : [status(trial), status(trial)];
  const node = el(
    "div",
    {
      class: "row",
      role: "option",
      id: `row-${trial}`,
      "aria-setsize": matches.length,
      "aria-posinset": place + 1,
      "aria-selected": String(place === active),
      click: () => {
        list.focus({ preventScroll: true });
        active = place;
        go(toTrial(trial));
      },
    },
    el("b", { class: `sign ${sign}` }, el("span", { "aria-hidden": "true" }, SYMBOLS[status(trial)]), hidden(ended)),
    el(
      "span",
      { class: "id", title: scenario(trial) },
      scenario(trial),
      el("small", null, " ", facts(trial).join(" · ")),
    ),
    summary(trial),
    el(
      "span",
      { class: "costs" },
      found.length > 0 &&
        el("b", { class: "warn", title: found.join(", "), "aria-hidden": "true" }, `⚠ ${found.length} `),
      found.length > 0 && hidden(`incidents: ${found.join(", ")} `),
      index.tokens[trial] >= 0 && `${amount(index.tokens[trial])} tok`,
    ),
  );
  node.style.transform = `translateY(${place * ROW}px)`;
  return node;
};

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
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
};
list.addEventListener("scroll", drawSoon, { passive: true });
addEventListener("resize", drawSoon);

/** Find the trials anew, and say how many there are. */
const apply = () => {
  fill(match());
  const left = index.left_out ? `; ${counted(index.left_out, "more trial")} in trials.jsonl` : "";
  count.textContent = `${amount(matches.length)} of ${counted(trials.length, "trial")}${left}`;
  active = matches.indexOf(open);
  list.scrollTop = active < 0 ? 0 : Math.max(0, active * ROW - list.clientHeight / 3);
  draw();
};

/** Bring the active row into view. */
const reveal = () => {
  const top = active * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  draw();
};

let walking; // A timer: who holds a key down sees the rows pass by, and the trial where they stop.
const walk = (place) => {
  if (!matches.length) return;
  active = Math.max(0, Math.min(matches.length - 1, place));
  reveal();
  clearTimeout(walking);
  if (wide.matches) walking = setTimeout(() => go(toTrial(matches[active]), { replace: open >= 0 }), 60);
};
list.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
  const steps = new Map([
    ["ArrowDown", active + 1],
    ["ArrowUp", active - 1],
    ["PageDown", active + page],
    ["PageUp", active - page],
    ["Home", 0],
    ["End", matches.length - 1],
  ]);
  if (steps.has(event.key)) {
    event.preventDefault();
    walk(steps.get(event.key));
  } else if (event.key === "Enter" && active >= 0) {
    event.preventDefault();
    clearTimeout(walking);
    if (open === matches[active]) return byId("trial-name")?.focus();
    focusTrial = true;
    go(toTrial(matches[active]));
  }
});
