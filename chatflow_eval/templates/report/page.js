// The page: what is shown follows the fragment, and nothing else.

const browse = byId("browse");
const bar = byId("bar");
const notice = byId("notice");
const remarks = byId("remarks");
const title = document.title;

let open = -1; // The trial that the fragment names.
let last = -1; // The trial that was open before.
let left; // Where the overview was left: how far it was scrolled, and the link that was followed.

const go = (to, { replace = false, quiet = false } = {}) => {
  if (location.hash === to) return;
  try {
    history[replace ? "replaceState" : "pushState"](null, "", to);
  } catch {
    return; // Browsers allow so many changes in so many seconds.
  }
  if (!quiet) follow();
};
/** From a trial back to the list, or from the search. */
const close = () => {
  go(toTrials(filters, query));
  list.focus({ preventScroll: true });
};

/** Where the panel covers the screen, what is under it is out of reach. */
const cover = () => {
  const covered = document.body.classList.contains("reading") && !wide.matches;
  for (const node of [bar, form, byId("found")]) node.inert = covered;
};
wide.addEventListener("change", cover);

const enter = (view) => {
  const from = document.body.dataset.view;
  if (from === view) return from;
  if (from === "overview") left = { scrolled: scrollY, link: document.activeElement, hash: before };
  document.body.dataset.view = view;
  return from;
};

let before = location.hash; // The fragment that the overview was shown for.
const showOverview = (section) => {
  const returning = enter("overview") === "trials";
  const found = section === undefined ? document.body : byId(section);
  notice.textContent = found ? "" : `This page has no section “${printable(section)}”.`;
  if (returning && location.hash === left.hash) {
    scroll({ top: left.scrolled, behavior: "instant" });
    left.link.focus({ preventScroll: true });
  } else if (section !== undefined) (found ?? notice).scrollIntoView();
  before = location.hash;
};

/** Beside the list stands the trial that was opened last, or the first one. */
const preview = () => {
  if (active < 0 && matches.includes(last)) active = matches.indexOf(last);
  if (active < 0 && wide.matches && matches.length) active = 0;
  if (active >= 0) {
    show(matches[active]);
    list.scrollTop = Math.max(0, active * ROW - list.clientHeight / 3);
  } else {
    request++;
    panel.replaceChildren();
    delete panel.dataset.trial;
  }
  draw();
};

/** What is to be known of the choices, where no trial is so, or one of them is none of the page's. */
const remark = (unknown) => {
  const never = matches.length ? [] : impossible();
  const told = [
    ...unknown.map((key) => `There is no filter “${key}”.`),
    ...never.map((choice) => `No trial of this run has: ${choice}.`),
    !trials.length && "No trial ran.",
    trials.length && !matches.length && !never.length && "No trial is all of this.",
  ].filter(Boolean);
  remarks.replaceChildren(...told.map((line) => el("p", { class: "hint" }, line)));
};
let focusList = false;
const showList = (params) => {
  const { chosen, words, unknown } = asked(params);
  [filters, query, open] = [chosen, words, -1];
  apply();
  preview();
  remark(unknown);
  if (focusList) list.focus({ preventScroll: true });
  focusList = false;
};

const missing = (params) => {
  open = -1;
  request++;
  apply();
  const same = trials.find((trial) => path(trial) === params.get("trial"));
  const asked = [...params].map(([key, value]) => (key === "trial" ? value : `${key} ${value}`));
  const others =
    same !== undefined && el("a", { href: toTrials({ scenario: path(same) }) }, "The trials of this scenario");
  panel.replaceChildren(
    el("div", { class: "tools" }, backButton()),
    el("p", { class: "hint" }, "This report has no such trial: ", asked.join(", "), ". ", others),
  );
};

const showTrial = (params) => {
  const trial = sought(params);
  if (trial === undefined) return missing(params);
  open = last = trial;
  // A trial that the filters leave out is shown among all.
  if (!matches.includes(trial) && (query || Object.keys(filters).length)) {
    [filters, query] = [{}, ""];
    apply();
    remark([]);
  }
  active = matches.indexOf(trial);
  reveal();
  document.title = `${SYMBOLS[status(trial)]} ${printable(scenario(trial))} - chatflow-eval`;
  const turn = Number(params.get("turn"));
  return show(trial, Number.isInteger(turn) && turn > 0 ? turn : undefined);
};

const follow = () => {
  clearTimeout(walking);
  const params = new URLSearchParams(location.hash.slice(1));
  const [head] = params.keys();
  document.title = title;
  const covered = document.body.classList.contains("reading") && !wide.matches;
  document.body.classList.toggle("reading", head === "trial");
  cover();
  if (head !== "trial" && head !== "trials") {
    open = -1;
    showOverview(head);
    return;
  }
  const arrived = enter("trials") === "overview";
  if (arrived) focusTrial = head === "trial";
  if (!index) return;
  if (arrived || covered) focusList = head === "trials";
  if (head === "trial") showTrial(params);
  else showList(params);
};
addEventListener("hashchange", follow);

search.addEventListener("input", () => {
  query = search.value;
  go(toTrials(filters, query), { replace: true, quiet: true });
  document.body.classList.remove("reading");
  open = -1;
  apply();
  preview();
  remark([]);
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !index) return;
  if (event.key === "/" && !event.target.matches("input, select, textarea")) {
    event.preventDefault();
    if (document.body.dataset.view !== "trials" || (open >= 0 && !wide.matches)) go(toTrials(filters, query));
    search.focus();
    search.select();
  } else if (event.key === "ArrowDown" && event.target === search) {
    event.preventDefault();
    list.focus();
    walk(Math.max(active, 0));
  } else if (event.key === "Escape" && document.body.dataset.view === "trials") {
    if (event.target === search && query) return; // The browser empties it.
    if (open >= 0 || document.body.classList.contains("reading")) close();
    else if (event.target === search) list.focus();
  }
});

const start = async () => {
  index = await unpack("index");
  trials = index.at.map((_, trial) => trial);
  build();
  browse.hidden = false;
  apply();
  if (document.body.dataset.view === "trials") follow();
  document.body.dataset.ready = "true";
};

document.body.dataset.view = "overview";
follow();
start().catch((error) => {
  browse.hidden = false;
  const told = `The trials could not be unpacked (${error}); they are all in trials.jsonl.`;
  browse.replaceChildren(el("p", { class: "hint" }, told));
});
