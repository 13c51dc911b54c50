// The trials: an index of all of them, and the details of those that are looked at; payload.py writes both.

const BLOCK = 100; // Trials whose details stand in one block.

const unpack = async (name) => {
  const bytes = Uint8Array.from(atob(byId(`data-${name}`).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
};

const unpacked = new Map();
const details = async (trial) => {
  const block = Math.floor(index.at[trial] / BLOCK);
  if (!unpacked.has(block)) unpacked.set(block, unpack(`details-${block}`));
  return (await unpacked.get(block))[index.at[trial] % BLOCK];
};

let index; // Columns by name; a trial is its place in them.
let trials; // All of them, those not as expected first.

const text = (column) => (trial) => index.texts[index[column][trial]];
const texts = (column) => (trial) => index.lists[index[column][trial]].map((place) => index.texts[place]);
const [file, scenario, model, target] = ["file", "scenario", "model", "target"].map(text);
const [users, why] = ["users", "why"].map(text);
const [tags, agents, incidents] = ["tags", "agents", "incidents"].map(texts);
const status = (trial) => index.statuses[index.status[trial]];
const expectedToFail = (trial) => index.ok[trial] && status(trial) === "failed";

const path = (trial) => `${file(trial)}::${scenario(trial)}`;
const answering = (trial) => (target(trial) === "chatflow" ? model(trial) : `${target(trial)}: ${model(trial)}`);

/** The agents of each turn. */
const routes = (trial) => {
  const turns = [[]];
  for (const place of index.lists[index.routes[trial]]) {
    if (place < 0) turns.push([]);
    else turns.at(-1).push(index.texts[place]);
  }
  return turns.slice(0, -1);
};
