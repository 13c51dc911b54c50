// Links into the page: the mirror image of links.py.

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
  params
    .toString()
    .replaceAll("+", "%20")
    .replaceAll("%2F", "/")
    .replaceAll("%3A", ":")
    .replaceAll("%7E", "~")
    .replaceAll("*", "%2A");
const fragment = (head, values) => {
  const said = new URLSearchParams(Object.entries(values).filter(([, value]) => !nothing(value)));
  return "#" + [head, spelled(said)].filter(Boolean).join("&");
};
const toTrials = (chosen, words) => fragment("trials", { ...chosen, q: words });
const toTrial = (trial, turn) =>
  fragment("", {
    trial: path(trial),
    model: model(trial) === "declared" ? "" : model(trial),
    repeat: index.repeat[trial] === 1 ? "" : index.repeat[trial],
    target: target(trial) === "chatflow" ? "" : target(trial),
    turn,
  });

const USUAL = [
  ["model", model, "declared"],
  ["target", target, "chatflow"],
  ["repeat", (trial) => String(index.repeat[trial]), "1"],
];

/** The trial that a link names; what it leaves out is the usual where some trial has it, and else whatever comes. */
const sought = (params) => {
  let found = trials.filter((trial) => path(trial) === params.get("trial"));
  for (const [key, of, usual] of USUAL) {
    const same = found.filter((trial) => of(trial) === (params.get(key) ?? usual));
    if (same.length || params.has(key)) found = same;
  }
  return found[0];
};
