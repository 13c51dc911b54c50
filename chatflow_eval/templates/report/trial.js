// One trial: its turns, each with both routes, what was checked, and who said, called and handed off what.

const MAX_TAGS = 12; // Of a trial, that are shown.

const soft = (...children) => el("p", { class: "soft" }, children);
/** Whether the trial went wrong in the turn: a check failed, an error ended it, or it has the incident to blame. */
const isBad = (shown, number) => {
  const { failure, verdicts } = shown.turns[number - 1];
  return failure || shown.wrong?.[0] === number || verdicts?.some((verdict) => verdict.status === "failed");
};

// Routes, expected above actual.

const agentOr = (name, nobody) =>
  name === null ? el("em", null, nobody) : name === "" ? el("em", null, "anybody") : name;
const lanes = (places) => {
  const judged = places.some(([expected]) => expected !== "");
  const stops = places.map(([expected, actual, ok]) =>
    el(
      "li",
      { class: ok ? "ok" : "off" },
      judged &&
        el(
          "span",
          { class: expected ? "want" : "want no" },
          el("i", { class: "vh" }, "expected "),
          agentOr(expected, "nobody"),
        ),
      el(
        "span",
        { class: actual === null ? "came no" : "came" },
        el("i", { class: "vh" }, ", actual "),
        !ok && actual !== null && el("i", { "aria-hidden": "true" }, "✗ "),
        agentOr(actual, "nobody"),
      ),
    ),
  );
  const names = [judged && el("span", null, "expected"), el("span", null, "actual")];
  return el(
    "ol",
    { class: judged ? "lane" : "lane bare" },
    el("li", { class: "names", "aria-hidden": "true" }, names),
    stops,
  );
};

// What was checked, and found.

const LANED = ["route", "stay"]; // Checks of which the lanes say what was expected.
const checks = (verdicts) => {
  const expectation = ({ status, check, expected, actual }) =>
    status === "failed" &&
    expected &&
    !LANED.includes(check) &&
    el("span", { class: "soft" }, ` expected ${expected}${actual ? `, actual ${actual}` : ""}`);
  const told = (verdict) =>
    verdict.status === "passed"
      ? el("span", { class: "soft" }, verdict.expected)
      : [el("span", { dir: "auto" }, verdict.why), expectation(verdict)];
  const sign = ({ status, check }) => el("b", { class: status }, SYMBOLS[status], hidden(` ${status}`), " ", check);
  return (
    verdicts &&
    el(
      "ul",
      { class: "checks" },
      verdicts.map((verdict) => el("li", null, sign(verdict), " ", told(verdict))),
    )
  );
};
const incidentsOf = (found) =>
  found &&
  el(
    "ul",
    { class: "found" },
    found.map(({ kind, fails, message, cost, reasons, quotes }) =>
      el(
        "li",
        null,
        el("b", { class: fails ? "failed" : "warn" }, fails ? "✗ " : "⚠ ", kindName(kind)),
        " ",
        message,
        cost && el("span", { class: "soft" }, ` ${cost}`),
        reasons && el("div", { class: "soft" }, "reasons given: ", reasons.join(", ")),
        (quotes ?? []).map((quote) => el("blockquote", { dir: "auto" }, quote)),
      ),
    ),
  );

// The transcript: each step's class, who took it, and what it says.

const data = (label, value) =>
  value !== undefined && el("div", { class: "data" }, el("small", null, label), code(value));
const quoted = (label, value) => value && el("div", { class: "data" }, el("small", null, label), words(value));
const spent = ({ tokens, seconds: took }) => {
  const parts = [
    tokens && `${amount(tokens[0])} tokens in, ${amount(tokens[1])} out`,
    took !== undefined && seconds(took),
  ];
  return el("small", { class: "spent" }, parts.filter(Boolean).join(" · "));
};
const handoff = (step) => {
  const to = el("b", null, step.target);
  const tool = step.tool && el("small", null, " ", code(step.tool));
  if (step.refused)
    return [el("b", null, "✗ refused "), step.call ? "calls " : "hands off to ", to, ` (${step.refused})`, tool];
  const against = step.against && el("b", null, ` ✗ although it was refused (${step.against})`);
  return [step.call ? "calls " : "hands off to ", to, tool, against];
};
const STEPS = {
  model: (step) => [
    "model",
    step.agent,
    step.text ? words(step.text) : !step.calls && el("em", null, "empty answer"),
    step.calls
      ? el(
          "div",
          { class: "calls" },
          el("small", null, "calls "),
          step.calls.map((called) => [code(called), " "]),
          spent(step),
        )
      : spent(step),
  ],
  tool: (step) => [
    step.error || step.unknown ? "tool bad" : "tool",
    step.agent,
    el(
      "div",
      null,
      el("small", null, step.unknown ? "✗ called a tool that it does not have " : "tool "),
      code(step.tool),
    ),
    data("arguments", step.arguments),
    data(step.error ? "✗ error" : "result", step.result),
  ],
  hop: (step) => [
    step.refused || step.against ? "hop bad" : "hop",
    step.source,
    el("div", { class: "handoff" }, handoff(step)),
    quoted("reason", step.reason),
    step.message && words(step.message),
    quoted("✗ failed", step.failed),
    step.withheld && el("small", null, `without its tools ${step.withheld.join(", ")}`),
  ],
  limit: (step) => [
    "limit bad",
    step.agent,
    el("div", null, "✗ reached the limit ", code(step.limit), ` (${step.value})`),
  ],
  fault: (step) => [
    "fault bad",
    step.agent,
    el("div", null, "✗ a provider would refuse this history: ", code(step.code)),
    words(step.message),
  ],
  warning: (step) => ["warning", step.agent, el("div", null, "! ", step.message)],
};

/** The turn line by line; `wrong` is the step that went wrong, one after the last for the end of the turn. */
const transcript = (turn, wrong, expected) => {
  const steps = turn.steps ?? [];
  let before;
  const line = ([kind, who, ...body], at) => {
    const here = at !== undefined && at === wrong;
    const again = who === before;
    before = who;
    return el(
      "li",
      { class: `step ${kind}${here ? " wrong" : ""}` },
      el("b", { class: again ? "who again" : "who" }, who),
      el(
        "div",
        { class: "body" },
        here && el("p", { class: "here" }, `✗ Here it went wrong${expected ? `: ${expected} was expected` : ""}`),
        body,
      ),
    );
  };
  const first = line(["user", "user", words(turn.user)]);
  const lines = steps.map((step, at) => line(STEPS[step.is](step), at));
  const end = steps.length;
  const rest = [];
  if (turn.steps_left_out)
    rest.push(line(["warning", "", `${counted(turn.steps_left_out, "more step")} in trials.jsonl`]));
  if (turn.failure) rest.push(line(["failure bad", "error", words(turn.failure)], end));
  if (turn.reply) rest.push(line(["model reply", turn.ends ?? "", words(turn.reply)], turn.failure ? undefined : end));
  if (wrong === end && !rest.length && lines.length) lines.at(-1).classList.add("wrong");
  return el("ol", { class: "steps" }, first, lines, rest);
};

const turnView = (trial, shown, number) => {
  const turn = shown.turns[number - 1];
  const [wrongTurn, ...wrong] = shown.wrong ?? [];
  const judged = turn.verdicts ? "passed" : "";
  const ended = turn.failure ? "errored" : isBad(shown, number) ? "failed" : turn.reached ? judged : "skipped";
  const facts = [
    !turn.reached && "not reached",
    turn.after_failure && "after a failed turn",
    turn.tokens && counted(turn.tokens[0] + turn.tokens[1], "token"),
    turn.seconds !== undefined && seconds(turn.seconds),
  ].filter(Boolean);
  return el(
    "section",
    { class: "turn", id: `turn-${number}`, "aria-labelledby": `turn-${number}-name` },
    el(
      "h3",
      { id: `turn-${number}-name` },
      ended && el("b", { class: ended }, el("span", { "aria-hidden": "true" }, SYMBOLS[ended], " ")),
      `Turn ${number}`,
      ended && hidden(` ${turn.reached ? ended : ""}`),
      el(
        "small",
        null,
        facts.map((fact) => ` · ${fact}`),
      ),
      el("a", { href: toTrial(trial, number), class: "anchor", "aria-label": `Link to turn ${number}` }, "#"),
    ),
    turn.places ? lanes(turn.places) : turn.expected && soft("expected ", code(turn.expected)),
    checks(turn.verdicts),
    incidentsOf(turn.incidents),
    transcript(turn, ...(wrongTurn === number ? wrong : [])),
    turn.context && el("details", null, el("summary", null, "Context after the turn"), code(turn.context)),
  );
};

// The whole of it, in the panel beside the list.

const panel = byId("panel");

const copyButton = (trial, turn) => {
  const copied = hidden("", { role: "status" });
  const copy = button("Copy link", async () => {
    const link = new URL(toTrial(trial, turn), location.href).href;
    try {
      await navigator.clipboard.writeText(link);
      copied.textContent = copy.textContent = "Copied";
    } catch {
      const field = el("input", { readonly: true, value: link, "aria-label": "Link", focus: () => field.select() });
      copy.replaceWith(field);
      field.focus();
    }
  });
  return [copy, copied];
};
const backButton = () => button("← Trials", close, { class: "back" });
const tools = (trial, turn) => {
  const place = matches.indexOf(trial);
  const step = (by, label, sign) =>
    button(sign, () => go(toTrial(matches[place + by]), { replace: true }), {
      "aria-label": label,
      title: label,
      disabled: place < 0 || !(place + by in matches),
    });
  return el(
    "div",
    { class: "tools" },
    backButton(),
    el("span", { class: "title" }, scenario(trial)),
    step(-1, "Previous trial", "↑"),
    step(1, "Next trial", "↓"),
    copyButton(trial, turn),
  );
};

const head = (trial, shown, asked) => {
  const tagged = tags(trial);
  const facts = [
    `${file(trial)}${shown.line ? `:${shown.line}` : ""}`,
    answering(trial),
    `repeat ${index.repeat[trial]}`,
    ...tagged.slice(0, MAX_TAGS),
    tagged.length > MAX_TAGS && counted(tagged.length - MAX_TAGS, "more tag"),
    index.tokens[trial] >= 0 && counted(index.tokens[trial], "token"),
    seconds(index.seconds[trial]),
    shown.replayed && "recorded answers",
  ].filter(Boolean);
  const turns = shown.turns ?? [];
  const turnLink = (_, at) =>
    el(
      "a",
      { href: toTrial(trial, at + 1), "aria-current": asked === at + 1 && "true" },
      isBad(shown, at + 1) && el("b", { class: "failed" }, "✗ "),
      `Turn ${at + 1}`,
    );
  return el(
    "header",
    null,
    el(
      "h2",
      { tabindex: "-1", id: "trial-name" },
      el(
        "b",
        { class: expectedToFail(trial) ? "skipped" : status(trial) },
        SYMBOLS[status(trial)],
        hidden(` ${status(trial)} `),
      ),
      " ",
      scenario(trial),
    ),
    el("p", { class: "facts" }, facts.join(" · ")),
    asked > turns.length && el("p", { class: "notice" }, `This trial has no turn ${asked}.`),
    shown.xfail && soft("Expected to fail: ", shown.xfail),
    shown.failure
      ? el("p", { class: "errored" }, "! ", shown.failure)
      : shown.why && el("p", { class: "because", dir: "auto" }, shown.why),
    shown.parted && soft("Live from where the recording did not match: ", shown.parted),
    shown.ignored && soft("Ignored where requests differ from recordings: ", shown.ignored.join(", ")),
    turns.length > 1 && el("nav", { "aria-label": "Turns" }, turns.map(turnLink)),
  );
};

let request = 0; // The last trial that was asked for is the one that is shown, whenever its details have come.
let focusTrial = false;
const show = async (trial, asked) => {
  const mine = ++request;
  const shown = await details(trial);
  if (mine !== request) return;
  const turns = shown.turns ?? [];
  panel.replaceChildren(
    tools(trial, asked),
    head(trial, shown, asked),
    ...turns.map((_, at) => turnView(trial, shown, at + 1)),
    shown.turns_left_out ? soft(`${counted(shown.turns_left_out, "more turn")} in trials.jsonl`) : "",
    shown.overall
      ? el(
          "section",
          { class: "turn" },
          el("h3", null, "Whole conversation"),
          shown.overall_route && lanes(shown.overall_route),
          checks(shown.overall),
        )
      : "",
  );
  const [wrongTurn] = shown.wrong ?? [];
  const turn = byId(`turn-${asked}`) ?? byId(`turn-${wrongTurn}`);
  scrollPanel(turn, turn?.id === `turn-${wrongTurn}` ? turn.querySelector(".wrong") : null);
  if (open >= 0 && (focusTrial || !wide.matches)) byId("trial-name").focus({ preventScroll: true });
  focusTrial = false;
  panel.dataset.trial = trial;
};

/** Scroll to a turn, and on to the step in it where the two do not fit together. */
const scrollPanel = (turn, step) => {
  panel.scrollTop = 0;
  if (!turn) return;
  const top = (node) =>
    node.getBoundingClientRect().top - panel.getBoundingClientRect().top - panel.firstChild.offsetHeight;
  panel.scrollTop = top(turn);
  const below = step && step.getBoundingClientRect().bottom > panel.getBoundingClientRect().bottom;
  if (below) panel.scrollTop += top(step) - panel.clientHeight / 3;
};
